"""Where a target comes from: a function `package.module:build`, or a YAML file.

build: my_package.federation:build     # or a model and data that leakscope knows, by name
client: {epochs: 1, batch_size: 8, rate: 0.1}
defences: [{name: clip, bound: 1.0}]
on_data: {policy: 3-1-7}
on_model: {alpha2: 0.1}
examples: 8
minutes: 2
server: malicious
fail_above: {asr: 0.05, psnr: 18}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, create_model
from torch import nn

from leakscope.auditing.limits import first_line
from leakscope.auditing.target import Target
from leakscope.auditing.verdict import GATES
from leakscope.clients import Aggregation, Client
from leakscope.clients.aggregation import read_aggregation
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.plugins import import_named, until_registration
from leakscope.core.types import LocalTraining
from leakscope.data import SOURCES, load
from leakscope.defences import Defence
from leakscope.defences.on_data import Transform
from leakscope.defences.on_model import Polarisation
from leakscope.models import Init, Transformer, build_module, draw_parameters, from_module
from leakscope.scenario.cell import ModelChoice
from leakscope.scenario.components import KINDS, STRICT, AlsoByName, build_field, component_type, list_of, model_of
from leakscope.scenario.problems import Problem
from leakscope.scenario.reader import UserFile, read_user_file
from leakscope.scenario.schema import build_value
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.objects import settings_for

SAMPLE = 64
EMPTY_GATE = "a gate or a limit is empty, which would let everything pass: give limits such as {asr: 0.05, psnr: 18}, or leave it out"
OF_DATA = ("name", "part", "first")  # fields of a data choice that an audit uses; it simulates the clients itself


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A target and how to audit it; None: not given in the file."""

    target: Target
    minutes: float | None = None
    clients: int | None = None
    seed: int | None = None
    server: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


def load_build(name: str, captures: Path | None = None) -> Target:
    """Return what `package.module:function` builds: a `Target`, a mapping of its fields, or an `nn.Module` (for `captures`)."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        forgot = not function_name and "." in name and all(part.isidentifier() for part in name.split("."))
        hint = f"; name its function too, such as {name:.80}:build" if forgot else ""
        raise InputError(
            f"what to audit must be package.module:function, a YAML file or captures, got {name!r:.80}{hint}"
        )
    module = import_named(module_name, captures)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(
            f"{module_name} has no function {function_name!r} (imported from {getattr(module, '__file__', None)})"
        )
    try:
        built = function()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}() raised {type(error).__name__}: {first_line(error)}") from None
    return _target(name, built)


def _target(name: str, built: object) -> Target:
    if isinstance(built, Target):
        return built
    if isinstance(built, nn.Module):
        return Target(model=built)
    if isinstance(built, Mapping):
        try:
            return Target(**built)
        except TypeError as error:
            raise InputError(f"{name}() returns fields that Target does not take: {first_line(error)}") from None
    raise InputError(
        f"{name}() must return a Target, a mapping of its fields or an nn.Module, got {type(built).__name__}"
    )


def named_model(name: str, shape: tuple[int, ...], classes: int) -> Target:
    """Return a network by name as a target without data."""
    return Target(model=build_module(name, shape, classes, {}), input_shape=shape)


def read_request(path: Path) -> Request:
    """Return what a YAML file asks for, or raise an error with every mistake, a line each."""
    if path.suffix == ".py":
        module, where = module_of(path)
        raise InputError(
            f"{path} is Python: name the function in it that builds the target, such as {module}:build{where}"
        )
    file = read_user_file(path, "an audit file")
    return _request(path, _asked(file))


def module_of(path: Path) -> tuple[str, str]:
    """Return the import name of a Python file, and in words the directory to import it from ("" for the working directory)."""
    names = path.with_suffix("").parts
    if not (path.parent / "__init__.py").is_file() and all(name.isidentifier() for name in names):
        return ".".join(names), ""
    parts, root = [path.stem], path.absolute().parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return ".".join(parts), "" if root == Path.cwd() else f" in the directory {root}"


@until_registration
@functools.cache
def file_model() -> type[BaseModel]:
    """Return the pydantic model of an audit file."""
    gate = create_model("fail_above", __config__=STRICT, **dict.fromkeys(GATES, (float | None, None)))  # type: ignore[call-overload]
    data: Any = Annotated[model_of(DataChoice, "data"), BeforeValidator(_by_name), AlsoByName(tuple(SOURCES))]
    parts: dict[str, Any] = {
        "build": (str | None, None),
        "model": (component_type("model") | None, None),
        "data": (data | None, None),
        "weights": (component_type("weights"), {"name": "uniform", "a": 0.5}),
        "client": (model_of(LocalTraining, "client") | None, None),
        "defences": (list_of(component_type("defences")), []),
        "on_data": (model_of(Transform, "on_data") | None, None),
        "on_model": (model_of(Polarisation, "on_model") | None, None),
        "loss": (str | None, None),
        "examples": (int | None, None),
        "aggregate": (int | model_of(Aggregation, "aggregate") | None, None),
        "minutes": (float | None, None),
        "clients": (int | None, None),
        "seed": (int | None, None),
        "server": (str | None, None),
        "fail_above": (gate | None, None),
    }
    return create_model("audit", __config__=STRICT, **parts)


def _by_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFile:
    """Contents of an audit file; None: not given."""

    build: str | None
    model: ModelChoice | None
    data: DataChoice | None
    weights: Init
    client: LocalTraining | None
    defences: tuple[Defence, ...]
    on_data: Transform | None
    on_model: Polarisation | None
    loss: str | None
    examples: int | None
    aggregate: int | Aggregation | None
    minutes: float | None
    clients: int | None
    seed: int | None
    server: str | None
    fail_above: Mapping[str, float]


def _asked(file: UserFile) -> AuditFile:
    """Return the checked fields of a file as values, or raise all errors of their constructors."""
    name = file.data.get("model")
    if isinstance(name, str) and ":" in name:
        words = f"names a network of leakscope; for a function of your own write build: {name:.80}"
        raise file.error([Problem(("model",), words)])
    fields = file.check(file_model())
    problems: list[Problem] = []

    def value(name: str, make: Callable[[dict[str, object]], object]) -> object:
        given = fields[name]
        return None if given is None else build_value((name,), given, partial(make, given), problems)

    asked: dict[str, object] = fields | {
        "model": value("model", ModelChoice.of),
        "data": value("data", lambda settings: DataChoice(**settings)),  # type: ignore[arg-type]
        "weights": value("weights", KINDS["weights"].build),
        "client": value("client", lambda settings: LocalTraining(**settings)),  # type: ignore[arg-type]
        "defences": tuple(
            build_value(("defences", place), fields["defences"], partial(KINDS["defences"].build, item), problems)
            for place, item in enumerate(fields["defences"])
        ),
        "aggregate": value("aggregate", read_aggregation),
        "on_data": value("on_data", lambda settings: Transform(**settings)),  # type: ignore[arg-type]
        "on_model": value("on_model", lambda settings: Polarisation(**settings)),  # type: ignore[arg-type]
        "fail_above": {name: limit for name, limit in (fields["fail_above"] or {}).items() if limit is not None},
    }
    gate = file.data.get("fail_above") or {}
    if "fail_above" in file.data and (not gate or None in gate.values()):
        problems.append(Problem(("fail_above",), EMPTY_GATE))
    if problems:
        raise file.error(problems)
    data = asked["data"]
    if isinstance(data, DataChoice) and SOURCES[data.name].kind == "text" and "weights" not in file.data:
        asked["weights"] = Transformer()
    return AuditFile(**asked)  # type: ignore[arg-type]  # each built by its maker


def _request(path: Path, asked: AuditFile) -> Request:
    if (asked.build is None) == (asked.model is None and asked.data is None):
        raise InputError(f"{path}: give either build, or model and data")
    target = load_build(asked.build) if asked.build else _named(path, asked)
    if asked.examples is not None:
        target = replace(target, examples=asked.examples)
    if asked.aggregate is not None:
        target = replace(target, aggregate=asked.aggregate)
    if asked.loss is not None:
        target = replace(target, loss=asked.loss)
    if any(part is not None for part in (asked.client, asked.on_data, asked.on_model)):
        target = replace(target, client=_client(asked, target.client))
    if asked.defences:
        target = replace(target, defences=asked.defences)
    return Request(target, asked.minutes, asked.clients, asked.seed, asked.server, asked.fail_above)


def _client(asked: AuditFile, built: LocalTraining | Client | None) -> Client:
    """Return the client of the target with the file's settings applied."""
    client = built if isinstance(built, Client) else Client(local=built)
    return replace(
        client,
        local=client.local if asked.client is None else asked.client,
        on_data=client.on_data if asked.on_data is None else asked.on_data,
        on_model=client.on_model if asked.on_model is None else asked.on_model,
    )


def _named(path: Path, asked: AuditFile) -> Target:
    """Return the target for a bundled model and data set, by name."""
    if asked.model is None or asked.data is None:
        raise InputError(f"{path}: model and data belong together")
    choice = asked.data
    _check_choice(path, choice)
    data = load(choice.name)
    part = range(choice.first, min(choice.first + SAMPLE, data.size(choice.part)))
    inputs, labels = data.pictures(choice.part, part), data.labels(choice.part, part)
    shape, classes = tuple(inputs.shape[1:]), data.classes
    settings = {name: build_field(name, value) for name, value in settings_for(asked.model, data).items()}
    module = build_module(asked.model.name, shape, classes, settings, seed=asked.seed or 0)
    drawn = draw_parameters(from_module(module, input_shape=shape), asked.weights, random.key([asked.seed or 0]))
    module.load_state_dict({name: value[0] for name, value in drawn.items()}, strict=False)
    if data.kind == "text":
        return Target(model=module, inputs=inputs.long(), labels=labels, words=data.words)
    return Target(model=module, inputs=inputs, labels=labels)


def _check_choice(path: Path, choice: DataChoice) -> None:
    """Refuse data settings of a scenario that an audit would ignore."""
    for each in fields(choice):
        if each.name not in OF_DATA and getattr(choice, each.name) != each.default:
            instead = "; examples says how many a client holds" if each.name == "samples" else ""
            raise InputError(
                f"{path}: data.{each.name} is for scenarios; an audit takes {', '.join(OF_DATA)} of data{instead}"
            )
