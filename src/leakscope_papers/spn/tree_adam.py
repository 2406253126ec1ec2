"""Adam on trees, for weights that a server moves by received gradients (Kingma and Ba 2015, arXiv:1412.6980)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.tree import Tree


@dataclass(frozen=True, slots=True)
class Moments:
    """Adam's state: running means of gradients and squared gradients, and the steps `taken` (a scalar, or per leading entry)."""

    first: Tree
    second: Tree
    taken: Tensor


def begin(values: Tree, taken: Tensor) -> Moments:
    """Return the moments before the first step; `taken` holds zeros."""
    first, second = ({n: torch.zeros_like(v) for n, v in values.items()} for _ in range(2))
    return Moments(first, second, taken.to(torch.float64))


def step(values: Tree, gradient: Tree, moments: Moments, rate: float) -> tuple[Tree, Moments]:
    """Return the values after one step of torch's Adam, and the new moments."""
    taken = moments.taken + 1
    first = {n: 0.9 * moments.first[n] + 0.1 * g for n, g in gradient.items()}
    second = {n: 0.999 * moments.second[n] + 0.001 * g * g for n, g in gradient.items()}

    def moved(name: str, value: Tensor) -> Tensor:
        count = taken.reshape(*taken.shape, *[1] * (value.ndim - taken.ndim))
        mean, spread = (m[name] / (1 - beta**count).to(value.dtype) for m, beta in ((first, 0.9), (second, 0.999)))
        return value - rate * mean / (spread.sqrt() + 1e-8)

    return {n: moved(n, v) for n, v in values.items()}, Moments(first, second, taken)
