"""Validation of a scenario with pydantic; every error becomes a `Problem`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from leakscope.attacks.null import BASELINES, TEXT_BASELINES
from leakscope.clients import Client
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.core.plugins import until_registration
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.defences.stack import check_stack
from leakscope.metrics import METRICS
from leakscope.scenario.components import (
    KINDS,
    LISTS,
    NUMBER,
    STRICT,
    AlsoByName,
    Kind,
    component_type,
    list_of,
    model_of,
)
from leakscope.scenario.problems import Path, Problem
from leakscope.scenario.settings import DataChoice, KnowledgeChoice, Precision

V = TypeVar("V")

OUTSIDE = ("name", "attacks", "grid", "zip")
MOST_TRIALS = 1_000_000
MOST_SEEDS = 1_000
STRENGTHS = {"sparsify": ("drop", "share"), "gaussian_noise": ("sigma",), "laplace_noise": ("sigma", "scale")}
CHOICES: dict[str, Callable[..., object]] = {"data": DataChoice, "knowledge": KnowledgeChoice, "precision": Precision}


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _different(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise PydanticCustomError("seeds", "each seed may occur once")
    return seeds


def _metric(name: str) -> str:
    try:
        lookup(METRICS, name, "metric")
    except InputError as error:
        raise PydanticCustomError("component", "{said}", {"said": str(error)}) from None
    return name


@until_registration
@functools.cache
def cell_model() -> type[BaseModel]:
    """Return the model of one cell: all fields except the axes."""
    data: Any = Annotated[model_of(DataChoice, "data"), BeforeValidator(_by_name), AlsoByName(tuple(SOURCES))]
    client = model_of(Client, "client", frozenset({"scaling", "defences"}))
    fields: dict[str, Any] = {
        "data": (data, Field(description="Which private examples the clients hold; a name alone will do.")),
        "model": (component_type("model"), Field(description="The network; a name alone will do.")),
        "weights": (
            component_type("weights"),
            Field({"name": "uniform", "a": 0.5}, description="First weights of a trial."),
        ),
        "client": (client, Field({}, description="What a client does between download and upload.")),
        "defences": (list_of(component_type("defences")), Field([], description="Applied to the update, in order.")),
        "attack": (component_type("attack"), Field(description="The attack; use `attacks` for several.")),
        "knowledge": (model_of(KnowledgeChoice, "knowledge"), Field({}, description="What the attacker knows.")),
        "trials": (
            Annotated[int, Field(ge=1, le=MOST_TRIALS)],
            Field(16, description="Clients attacked per cell and seed."),
        ),
        "seeds": (
            Annotated[
                list[Annotated[int, Field(ge=0, lt=2**31)]],
                Field(min_length=1, max_length=MOST_SEEDS),
                AfterValidator(_different),
            ],
            Field([0], description="Each seed repeats every cell with other weights and starts."),
        ),
        "baselines": (
            list_of(Literal[tuple(dict.fromkeys((*BASELINES, *TEXT_BASELINES)))]),
            Field(list(BASELINES), description="Null baselines, which do not use the update."),
        ),
        "metrics": (
            list_of(Annotated[str, AfterValidator(_metric)]),
            Field(
                [], description="Scores in addition to MSE, PSNR and SSIM: the mean over a trial's examples is stored."
            ),
        ),
        "precision": (
            model_of(Precision, "precision"),
            Field({}, description="What of the way to run may change numbers."),
        ),
    }
    return create_model("Cell", __config__=STRICT, **fields)


@until_registration
@functools.cache
def file_model() -> type[BaseModel]:
    """Return the model of a whole file, for the JSON schema; axes are checked in `axes`."""
    axis = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field()]
    base = cell_model()
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in base.model_fields.items()}
    fields["attack"] = (component_type("attack") | None, Field(None, description="The attack."))
    fields |= {
        "name": (str, Field("", description="The title of the page.")),
        "attacks": (list_of(component_type("attack")), Field([], description="Several attacks on the same trials.")),
        "grid": (axis, Field({}, description="Path of a field -> its values; every combination is run.")),
        "zip": (axis | list[axis], Field({}, description="Paths whose values go together, of equal length.")),
    }
    return create_model("Scenario", __config__=ConfigDict(extra="forbid"), **fields)


def default_of(name: str) -> dict[str, Any]:
    """Return a field of the cell at its default, as raw data; {} if it has none."""
    field = cell_model().model_fields.get(name)
    return {} if field is None or field.is_required() else {name: copy.deepcopy(field.default)}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors."""
    schema = file_model().model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "leakscope scenario", **schema}


def check_cell(data: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Return a cell's settings with every default filled in, or all its problems."""
    data = _with_text_defaults(data)
    settings, problems = _checked(data)
    if settings is None and problems:
        mended, _ = _checked(_without(data, [problem.path for problem in problems]))
        settings = mended or {}
    if settings is None:
        return None, problems
    problems += [problem for name in settings for problem in _built(name, settings[name])]
    return (None, problems) if problems else (settings, [])


def _with_text_defaults(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cell with the first weights and null baselines of sentences, if it attacks sentences and names none."""
    chosen = _by_name(data.get("data"))
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    source = SOURCES.get(name) if isinstance(name, str) else None
    if source is None or source.kind != "text":
        return data
    return {"weights": "transformer", "baselines": list(TEXT_BASELINES), **data}


def _checked(data: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[Problem]]:
    try:
        return cell_model().model_validate(dict(data)).model_dump(), []
    except ValidationError as error:
        return None, [problem_of(data, item, cell_model()) for item in error.errors(include_url=False)]
    except RecursionError:
        return None, [Problem((), "nested too deeply")]


def _without(data: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    """Return the data without the invalid fields, to check the rest; required fields get a valid placeholder."""
    rest: dict[str, Any] = copy.deepcopy(dict(data))
    for path in paths:
        node: Any = rest
        for number, part in enumerate(path):
            whole = number == len(path) - 1 or not isinstance(node.get(part), Mapping)
            if whole:
                node.pop(part, None)
                break
            node = node[part]
    return {"data": "fashion_mnist", "model": "lenet_cpl", "attack": "cpl"} | rest


def _built(name: str, value: Any) -> list[Problem]:
    """Return the problems that constructors report."""
    if name == "client":
        problems = _refused((name,), value, lambda item: make_client(item, ()), most=1)
    elif name in CHOICES:
        problems = _refused((name,), value, lambda item: CHOICES[name](**item))
    elif name in LISTS:
        problems = [p for i, item in enumerate(value) for p in _refused((name, i), item, KINDS[name].build)]
    else:
        problems = _refused((name,), value, KINDS[name].build) if name in ("attack", "weights") else []
    if name == "defences" and not problems:
        try:
            check_stack([KINDS[name].build(item) for item in value])
        except InputError as error:
            problems.append(Problem((name,), str(error)))
    return problems


def idle_defences(data: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each defence without a strength, which would do nothing. An explicit 0 is allowed."""
    given = data.get("defences")
    problems: list[Problem] = []
    for place, item in enumerate(given if isinstance(given, list) else []):
        defence = _by_name(item)
        name = defence.get("name") if isinstance(defence, Mapping) else None
        wanted = STRENGTHS.get(name, ()) if isinstance(name, str) else ()
        if wanted and all(defence.get(key) is None for key in wanted):
            words = f"{name} without a strength does nothing: give {' or '.join(wanted)}"
            problems.append(Problem(("defences", place), words))
    return problems


def _refused(path: Path, value: Any, build: Callable[[Any], object], most: int = 9) -> list[Problem]:
    """Return the problems a constructor reports, one field at a time: each rejected field is reset to its default for the next try."""
    problems: list[Problem] = []
    item = copy.deepcopy(value)
    while len(problems) < most:
        try:
            build(item)
        except InputError as error:
            field = _find(item, str(error).split(" ", 1)[0].rpartition(".")[2])
            problems.append(Problem((*path, *field), str(error)))
            if not field:
                break
            node = item
            for part in field[:-1]:
                node = node[part]
            del node[field[-1]]
        else:
            break
    return problems


def build_value(path: Path, value: Any, make: Callable[[], V], problems: list[Problem]) -> V | None:
    """Return what `make` builds of the value at a path; its error is added to `problems` instead of raised."""
    try:
        return make()
    except InputError as error:
        problems.append(Problem(closer(path, value, str(error)), str(error)))
        return None


def closer(path: Path, value: Any, message: str) -> Path:
    """Return the path of the field that a message starting with `Class.field` names."""
    inner = value[path[-1]] if isinstance(path[-1], int) else value
    return (*path, *_find(inner, message.split(" ", 1)[0].rpartition(".")[2]))


def _find(value: Any, word: str) -> Path:
    """Return the path of a key in nested settings, or ()."""
    if not isinstance(value, Mapping):
        return ()
    if word in value:
        return (word,)
    paths = ((key, *_find(inner, word)) for key, inner in value.items())
    return next((path for path in paths if len(path) > 1), ())


def make_client(settings: Mapping[str, Any], defences: Sequence[Any], **filled: Any) -> Client:
    """Return the client that settings describe."""
    from leakscope.clients.aggregation import read_aggregation
    from leakscope.core.types import LocalTraining
    from leakscope.defences.on_data import Transform
    from leakscope.defences.on_model import Polarisation

    local, guard = settings["local"], settings["on_model"]
    training = None if local is None else LocalTraining(**local)
    on_model = None if guard is None else Polarisation(**guard)
    on_data = None if settings["on_data"] is None else Transform(**settings["on_data"])
    summed = read_aggregation(settings.get("aggregate", 1))
    chosen = {**settings, "local": training, "on_model": on_model, "on_data": on_data, "aggregate": summed}
    return Client(**chosen, defences=tuple(defences), **filled)


def problem_of(data: Mapping[str, Any], item: Any, root: type[BaseModel], kinds: Mapping[str, Kind] = KINDS) -> Problem:
    """Return a pydantic error as a problem; `root` is the model of the whole, `kinds` the fields that hold components."""
    path, model = _place(data, item["loc"], root, kinds)
    if item["type"] == "extra_forbidden":
        return Problem(path, _near_key(str(path[-1]), model))
    return Problem(path, message_of(item))


def message_of(item: Any) -> str:
    """Return the text of a pydantic error."""
    if item["type"] == "missing":
        return "missing; it must be given"
    if item["type"] == "component":
        return str(item["msg"])
    words = item["msg"].replace("Input should be", "must be").replace("List should", "the list must")
    return f"{words}, got {_short(item.get('input'))}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _near_key(key: str, model: type[BaseModel]) -> str:
    if key == "server" and model is cell_model():
        return "unknown key 'server': a manipulation among the attacks, such as imprint, makes the server dishonest"
    known = [*model.model_fields, *(OUTSIDE if model is cell_model() else ())]
    try:
        lookup(dict.fromkeys(known), key, "key")
    except UnknownNameError as error:
        return str(error)
    return f"unknown key {key!r}"


def _place(
    data: object, loc: Sequence[str | int], root: type[BaseModel], kinds: Mapping[str, Kind]
) -> tuple[Path, type[BaseModel]]:
    """Return the path in the file of pydantic's location (which also contains component names), and the model around its end."""
    path: list[str | int] = []
    model = root
    kind: Kind | None = None
    node = data
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        chosen = isinstance(part, str) and not (isinstance(node, Mapping) and part in node)
        if chosen and kind is not None and part in (*kind.table, NUMBER):
            if part != NUMBER:
                model = model_of(kind.table[str(part)], f"{kind.name} {part}", kind.hidden, str(part))
            kind = None
            continue
        path.append(part)
        if not last and isinstance(part, str):
            model, kind = _inside(model, part, kind, kinds)
        node = node[part] if isinstance(node, Mapping) and part in node else None
    return tuple(path), model


def _inside(
    model: type[BaseModel], part: str, kind: Kind | None, kinds: Mapping[str, Kind]
) -> tuple[type[BaseModel], Kind | None]:
    """Return the model of a field, or the kind of component it holds."""
    if part in kinds and not (part == "optimiser" and model.__name__ == "LocalTraining"):
        return model, kinds[part]
    inner = model.model_fields[part].annotation if part in model.model_fields else None
    options = getattr(inner, "__args__", None) or (inner,)
    plain = [get_args(option)[0] if get_origin(option) is Annotated else option for option in options]
    models = [option for option in plain if isinstance(option, type) and issubclass(option, BaseModel)]
    return (models[0] if models else model), kind
