"""Type checks for the fields of frozen dataclasses, with one-line error messages."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
from collections.abc import Hashable, Sequence
from typing import Union, cast, get_args, get_origin, get_type_hints

from torch import Tensor

from leakscope.core.errors import InputError

NUMBERS: dict[type, type] = {float: numbers.Real, int: numbers.Integral}
WORDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    Tensor: "a tensor",
    type(None): "None",
}


def check_fields(piece: object) -> None:
    """Raise if a field of a component holds a value of another type than declared.

    Numbers include NumPy's, a tuple may be a list, protocols are checked by their methods; uncheckable types are skipped.
    """
    for name, hint in _hints(cast(Hashable, type(piece))).items():
        value = getattr(piece, name)
        if not _holds(hint, value):
            raise InputError(f"{type(piece).__name__}.{name} must be {_words(hint)}, got {value!r:.80}")


@functools.cache
def _hints(kind: Hashable) -> dict[str, object]:
    """Return the types of the fields of a dataclass."""
    hints = get_type_hints(cast(type, kind))
    return {field.name: hints[field.name] for field in dataclasses.fields(cast(type, kind))}


def _options(hint: object) -> tuple[object, ...]:
    """Return the types of a union, flattened."""
    inner = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    return tuple(option for one in inner for option in _options(one)) or (hint,)


def _holds(hint: object, value: object) -> bool:
    return any(_is(option, value) for option in _options(hint))


def _is(kind: object, value: object) -> bool:
    """Return whether a value has a type; True for types that cannot be checked."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and _all_hold(get_args(kind), value)
    if not isinstance(kind, type):
        return True
    if isinstance(value, type):  # a class has the methods of its instances but is not one
        return False
    if type(value) is bool and kind in NUMBERS:
        return False
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")  # Python's and NumPy's
    return isinstance(value, NUMBERS.get(kind, kind))


def _all_hold(kinds: tuple[object, ...], values: Sequence[object]) -> bool:
    """Return whether the values match `tuple[kinds]`: any number of one type, or exactly these."""
    if kinds[-1] is ...:
        return all(_holds(kinds[0], value) for value in values)
    return len(kinds) == len(values) and all(map(_holds, kinds, values))


def _words(hint: object) -> str:
    return " or ".join(WORDS.get(cast(type, option)) or _name(option) for option in _options(hint))


def _name(kind: object) -> str:
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        inside = f"each {_words(first)}" if rest == [...] else ", ".join(map(_words, (first, *rest)))
        return f"a tuple, {inside}"
    return str(getattr(kind, "__name__", kind))
