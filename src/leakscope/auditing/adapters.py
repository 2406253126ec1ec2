"""Low-rank adapters of a network (LoRA, Hu et al. 2021, arXiv:2106.09685), found by their shapes.

An adapter is a module with one frozen matrix, o x d, and two trained ones, r x d and o x r with r below both. The gradient of the
inner factor A of y = W x + s B A x is s B^T (dL/dy) x^T: its rows lie in the span of the inputs x, at most r of them a module.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn

MOST_TENSORS = 6  # of an adapter with biases


@dataclass(frozen=True, slots=True)
class Adapter:
    """The module of an adapter, its rank, and whether its outer factor is still zero, as at the start of training."""

    name: str
    rank: int
    fresh: bool


def find_adapters(module: nn.Module) -> list[Adapter]:
    """Return the adapters of a network in its order."""
    found: dict[int, Adapter] = {}
    for name, part in module.named_modules():
        tensors = list(islice(part.parameters(), MOST_TENSORS + 1))
        if len(tensors) <= MOST_TENSORS and (pair := _pair(tensors)) is not None:
            inner, outer = pair
            if id(inner) not in found:  # the outermost module that holds one pair reads its input
                found[id(inner)] = Adapter(name, inner.shape[0], outer.device.type != "meta" and not bool(outer.any()))
    return list(found.values())


def _pair(tensors: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the inner and the outer factor beside a frozen matrix of their product's shape."""
    matrices = [value for value in tensors if value.ndim == 2]
    trained = [value for value in matrices if value.requires_grad]
    frozen = [{*value.shape} for value in matrices if not value.requires_grad]
    if len(trained) != 2 or len(frozen) != 1:
        return None
    for inner, outer in (trained, trained[::-1]):
        (rank, width), (height, other) = inner.shape, outer.shape
        if rank == other and rank < min(width, height) and frozen[0] == {width, height}:
            return inner, outer
    return None
