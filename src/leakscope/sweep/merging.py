"""Merging cells into one batch: components that differ only in strengths become one component with a strength for every trial."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar, cast, get_args, get_type_hints

import torch
from torch import Tensor

from leakscope.attacks.attack import readable

P = TypeVar("P")


def shape_of(part: object) -> str:
    """Return a component's text without its strengths: components of equal shape can be merged.

    >>> from leakscope.defences import GaussianNoise
    >>> shape_of(GaussianNoise(0.1)) == shape_of(GaussianNoise(0.2))
    True
    """
    return readable(_walk([part], lambda _: "*"))


def merge(values: Sequence[P], repeats: Sequence[int]) -> P:
    """Return one component for `sum(repeats)` trials; values[i] applies to the next repeats[i]. Equal strengths stay numbers.

    >>> from leakscope.defences import GaussianNoise
    >>> merge([GaussianNoise(0.5), GaussianNoise(2.0)], [2, 1]).sigma
    tensor([0.5000, 0.5000, 2.0000])
    """
    times = torch.tensor(list(repeats))

    def stack(strengths: Sequence[float]) -> object:
        if len(set(strengths)) == 1:
            return strengths[0]
        return torch.tensor([float(s) for s in strengths]).repeat_interleave(times)

    return cast(P, _walk(list(values), stack))


@functools.cache
def _strengths(kind: Hashable) -> frozenset[str]:
    """Return the strengths of a dataclass: the fields whose type admits a tensor or a number (`sigma: float | Tensor`)."""
    try:
        hints = get_type_hints(cast(type, kind))
    except NameError:
        return frozenset()
    return frozenset(name for name, hint in hints.items() if Tensor in get_args(hint) and float in get_args(hint))


def _walk(values: Sequence[object], on_strengths: Callable[..., object]) -> object:
    first = values[0]
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        fields = {name: _field(first, name, [getattr(v, name) for v in values], on_strengths) for name in names}
        copy = object.__new__(type(first))
        for name, value in fields.items():
            object.__setattr__(copy, name, value)
        return copy
    if isinstance(first, tuple | list):
        return type(first)(_walk([v[i] for v in values], on_strengths) for i in range(len(first)))  # type: ignore[index]
    if isinstance(first, Mapping):
        return {key: _walk([v[key] for v in values], on_strengths) for key in first}  # type: ignore[index]
    return first


def _field(owner: object, name: str, values: Sequence[object], on_strengths: Callable[..., object]) -> object:
    if name in _strengths(cast(Hashable, type(owner))) and all(isinstance(v, float | int) for v in values):
        return on_strengths(values)
    return _walk(values, on_strengths)
