"""The text of values that hold tensors: their shapes, never their numbers, which may be private data, weights or whole images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

MOST = 1200  # characters of a value
MOST_PLAIN = 80  # characters of a value without tensors
MOST_ITEMS = 3
DEEPEST = 1  # dataclasses inside of dataclasses that show their fields


def short_repr(value: object) -> str:
    """Return a dataclass in a few lines at most, to stand as its `__repr__`; fields at their defaults are left out.

    >>> from leakscope.core.types import Batch
    >>> import torch
    >>> Batch(torch.rand(4, 1, 3, 8, 8), torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1, dtype=torch.bool))
    Batch(inputs: 4 x 1 x 3 x 8 x 8 float32, labels: 4 x 1 int64, mask: 4 x 1 bool)
    """
    return _cut(_fields(value, 0), MOST)


def describe_value(value: object, depth: int = 1) -> str:
    """Return a value as text: shapes of tensors, number and size of named tensors, dataclasses two levels deep."""
    if isinstance(value, Tensor):
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{' x '.join(map(str, value.shape)) or 'one'} {str(value.dtype).removeprefix('torch.')}{place}"
    if isinstance(value, Mapping):
        if value and all(isinstance(item, Tensor) for item in value.values()):
            return f"{len(value)} tensors of {sum(item.numel() for item in value.values()):,} numbers"
        return f"{{{_items([f'{name}: {describe_value(item, depth + 1)}' for name, item in value.items()])}}}"
    if isinstance(value, tuple | list):
        return f"({_items([describe_value(item, depth) for item in value])})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value, depth)
    plain = isinstance(value, str | int | float | frozenset)
    return _cut(str(value) if plain else getattr(value, "__name__", type(value).__name__), MOST_PLAIN)


def _fields(value: object, depth: int) -> str:
    name = type(value).__name__
    if depth > DEEPEST:
        return f"{name}(...)"
    shown = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        content = getattr(value, field.name)
        empty = content is None or (isinstance(content, tuple | list | Mapping | str | frozenset) and not content)
        if field.repr and not empty and content is not field.default:
            shown.append(f"{field.name}: {describe_value(content, depth + 1)}")
    return f"{name}({', '.join(shown)})"


def _items(texts: list[str]) -> str:
    more = [f"{len(texts) - MOST_ITEMS} more"] if len(texts) > MOST_ITEMS else []
    return ", ".join([*texts[:MOST_ITEMS], *more])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."
