"""Components as written in a file: `{name: ..., setting: ...}`, or the name alone.

Fields, types and defaults are read from the signature of the function or frozen dataclass that builds the component, and checked
by pydantic. `build` makes a component from checked settings; `describe` is its inverse.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, create_model
from pydantic_core import PydanticCustomError
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.distances import DISTANCES
from leakscope.attacks.optimisers import OPTIMISERS
from leakscope.attacks.priors import PRIORS
from leakscope.attacks.recipes import ATTACKS
from leakscope.attacks.starts import STARTS
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.attacks.units import GAINS, OBJECTIVES
from leakscope.core.errors import InputError
from leakscope.core.plugins import until_registration
from leakscope.core.registry import lookup, summary
from leakscope.defences import DEFENCES
from leakscope.learning.losses import UserLoss
from leakscope.models import INITS, MODELS, TEXT_MODELS
from leakscope.scenario.insider import PublicExample
from leakscope.servers import MANIPULATIONS

PLAIN = (int, float, str, bool)
MOST_ITEMS = 100
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True, slots=True)
class Kind:
    """One registry of components. `hidden` arguments are set by leakscope, `words` are short forms."""

    name: str
    table: Mapping[str, Callable[..., Any]]
    hidden: frozenset[str] = frozenset()
    words: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    number: bool = False  # a plain number is also allowed

    def build(self, settings: Mapping[str, Any], **filled: object) -> Any:
        """Return the component that checked settings describe."""
        make = lookup(self.table, settings["name"], self.name)
        given = {name: build_field(name, value) for name, value in settings.items() if name not in ("name", "label")}
        return make(**given, **filled)

    def describe(self, component: object) -> dict[str, Any]:
        """Return the settings of a component of this registry."""
        for name, make in self.table.items():
            if make is type(component) and dataclasses.is_dataclass(component):
                known = file_fields(make, self.hidden)
                return {"name": name} | {key: describe_field(key, getattr(component, key)) for key in known}
        raise InputError(f"{component!r} is no {self.name} that a file can name")


ATTACKERS: Mapping[str, Callable[..., Attack]] = ChainMap[str, Callable[..., Attack]](
    ATTACKS,
    MANIPULATIONS,  # type: ignore[arg-type]
    TEXT_ATTACKS,
)
OBJECTIVE = Kind("objective", OBJECTIVES, words={name: {"name": "match", "distance": name} for name in DISTANCES})
KINDS = {  # by the field that holds such a component
    "attack": Kind("attack", ATTACKERS),
    "model": Kind(
        "model", ChainMap(MODELS, TEXT_MODELS), frozenset({"input_shape", "classes", "vocabulary", "padding"})
    ),
    "weights": Kind("initialisation", INITS),
    "defences": Kind("defence", DEFENCES),
    "start": Kind("start", {**STARTS, "insider": PublicExample}),
    "objective": OBJECTIVE,
    "inner": OBJECTIVE,
    "gain": Kind("gain", GAINS, number=True),
    "optimiser": Kind("optimiser", OPTIMISERS),
    "priors": Kind("prior", PRIORS),
}
LISTS = frozenset({"defences", "priors"})
SINGLE = frozenset({"start", "objective", "optimiser"})
NESTED = frozenset({"inner", "gain"})  # single components inside components of their kind
NUMBER = "number"


def build_field(name: str, value: Any) -> Any:
    """Return the constructor argument for a field of checked settings."""
    if name in LISTS:
        return tuple(KINDS[name].build(item) for item in value)
    if name in SINGLE | NESTED and isinstance(value, Mapping):
        return KINDS[name].build(value)
    if name == "distance":
        return DISTANCES[value]
    return _tuples(value)


def describe_field(name: str, value: Any) -> Any:
    """Return the plain form of a component's field."""
    if name in LISTS:
        return [KINDS[name].describe(item) for item in value]
    if name in SINGLE | NESTED and not isinstance(value, PLAIN):
        return KINDS[name].describe(value)
    if name == "distance":
        return next(word for word, distance in DISTANCES.items() if distance is value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: describe_field(key, getattr(value, key)) for key in file_fields(type(value), frozenset())}
    return [describe_field("", item) for item in value] if isinstance(value, tuple | list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def file_fields(make: Callable[..., Any], hidden: frozenset[str]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (type, default) of the arguments that a file can set; `...` without a default."""
    hints = get_type_hints(make) if not isinstance(make, type) else get_type_hints(make, include_extras=True)
    fields: dict[str, tuple[Any, Any]] = {}
    for name, argument in inspect.signature(make).parameters.items():
        if name in hidden or (name == "name" and argument.default is not inspect.Parameter.empty):
            continue
        checked = _file_type(name, hints.get(name))
        if checked is not None:
            fields[name] = (
                checked,
                ... if argument.default is inspect.Parameter.empty else _default(make, name, argument),
            )
    return fields


def _default(make: Callable[..., Any], name: str, argument: inspect.Parameter) -> Any:
    """Return the plain form of a default; dataclass factories appear as markers in a signature and are called."""
    if isinstance(make, type) and dataclasses.is_dataclass(make):
        for item in dataclasses.fields(make):
            if item.name == name and item.default_factory is not dataclasses.MISSING:
                return describe_field(name, item.default_factory())
    return describe_field(name, argument.default)


def list_of(item: Any) -> Any:
    """Return the type of a list of at most `MOST_ITEMS`, for an item type that is known only at run time."""
    return Annotated[list.__class_getitem__(item), Field(max_length=MOST_ITEMS)]


def _file_type(name: str, hint: Any) -> Any:
    """Return the type that pydantic checks for an argument, or None if a file cannot express it."""
    if name in LISTS:
        return list_of(component_type(name))
    if name in SINGLE and hint is not str:
        return component_type(name)
    if name in NESTED and hint not in PLAIN:
        return ForwardRef(f"piece_of_{name}")
    if name == "distance":
        return Literal[tuple(DISTANCES)]
    if hint in PLAIN or hint is type(None) or get_origin(hint) is Literal:
        return hint
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_file_type("", part) for part in get_args(hint) if not _in_python_alone(part)]
        return None if None in parts or not parts else functools.reduce(lambda a, b: a | b, parts)
    if get_origin(hint) is Sequence:
        inside = _file_type("", get_args(hint)[0])
        return None if inside is None else list_of(inside)
    if get_origin(hint) is tuple:
        inner = [part if part is ... else _file_type("", part) for part in get_args(hint)]
        if None in inner:
            return None
        if inner[-1] is ...:
            return list_of(inner[0])
        return Annotated[list[Any], Field(min_length=len(inner), max_length=len(inner))]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return model_of(hint, hint.__name__)
    return None


def _in_python_alone(part: Any) -> bool:
    """Return whether a type of a union is only for Python callers: a tensor of strengths, a loss or a protocol."""
    return part in (Tensor, UserLoss) or getattr(part, "_is_protocol", False)


@functools.cache
def model_of(
    make: Callable[..., Any], title: str, hidden: frozenset[str] = frozenset(), tag: str = ""
) -> type[BaseModel]:
    """Return the pydantic model of a signature; `tag` adds the fixed field `name`."""
    fields: dict[str, Any] = {"name": (Literal[tag], ...)} if tag else {}
    if tag in ATTACKERS and make is ATTACKERS[tag]:
        fields["label"] = (str, "")
    fields |= file_fields(make, hidden)
    return create_model(title, __config__=STRICT, __doc__=summary(make) or None, **fields)


@dataclass(frozen=True, slots=True)
class AlsoByName:
    """Declares in the JSON schema that the name alone is allowed."""

    names: tuple[str, ...]

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.names)}, handler(core)]}


@until_registration
@functools.cache
def component_type(kind_name: str) -> Any:
    """Return the pydantic type of a component: a name, or a mapping with a name and its settings."""
    return kind_type(KINDS[kind_name])


def kind_type(kind: Kind) -> Any:
    """Return the pydantic type of a component of any kind, also one outside scenarios."""
    models = {name: model_of(make, f"{kind.name} {name}", kind.hidden, name) for name, make in kind.table.items()}
    tagged = [Annotated[model, Tag(name)] for name, model in models.items()]
    options: Any = functools.reduce(lambda a, b: a | b, [*tagged, *[Annotated[float, Tag(NUMBER)]] * kind.number])
    checked: Any = Annotated[
        options,
        Discriminator(_name_of),
        BeforeValidator(functools.partial(_from_word, kind)),
        AlsoByName((*kind.table, *kind.words)),
    ]
    held = {name for model in models.values() for name in NESTED & model.model_fields.keys()}
    types = {f"piece_of_{name}": checked if KINDS[name] is kind else component_type(name) for name in held}
    for model in models.values():
        model.model_rebuild(_types_namespace=types)
    return checked


def _name_of(value: Any) -> Any:
    return value["name"] if isinstance(value, Mapping) else getattr(value, "name", NUMBER)


def _from_word(kind: Kind, value: Any) -> Any:
    """Return the long form of a component, after checking its name."""
    if isinstance(value, str):
        if value in kind.words:
            return dict(kind.words[value])
        value = {"name": value}
    if kind.number and isinstance(value, int | float):
        return value
    if not isinstance(value, Mapping):
        raise PydanticCustomError(
            "component", f"must be the name of one {kind.name} or a mapping with a name, got {value!r:.60}"
        )
    if not isinstance(value.get("name"), str):
        raise PydanticCustomError("component", f"needs a name: one of {', '.join(sorted(kind.table))}")
    try:
        lookup({**kind.table, **kind.words}, value["name"], kind.name)
    except InputError as error:
        raise PydanticCustomError("component", "{said}", {"said": str(error)}) from None
    return dict(value)
