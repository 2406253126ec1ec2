"""What convolutions of many clients as products of matrices share, whichever way the products are laid out.

Once clients have weights of their own, vmap turns their convolutions into one of many groups, which CPU libraries do at half
the speed and less. A torch function mode (`core.convolutions`) catches `nn.Conv2d`, `F.conv2d` and `torch.conv2d` above vmap and
grad. First derivatives only: this is for training, attacks differentiate twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.core.convolutions import pair
from leakscope.federated.bands import Sizes

Dims = tuple[int | None, ...]
Needs = tuple[bool, bool, bool]  # of input, weight, bias


@dataclass(frozen=True, slots=True)
class Way:
    """How products are laid out: its name, and the cotangents of input and weight from what the convolution kept of its kernel.

    `by_input(cotangent, kept, sizes)` and `by_weight(cotangent, x, kept, sizes)`; every tensor leads with the clients.
    """

    name: str
    by_input: Callable[[Tensor, Tensor, Sizes], Tensor]
    by_weight: Callable[[Tensor, Tensor, Tensor, Sizes], Tensor]


def sizes_of(
    input: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> Sizes | None:
    """Return the sizes of an ungrouped convolution of several pictures; None for any other, and for a mistaken one."""
    if input.ndim != 4 or groups != 1 or isinstance(padding, str) or input.shape[1] != weight.shape[1]:
        return None
    there, here, *kernel = weight.shape
    sizes = Sizes(pair(input.shape[2:]), (here, there), pair(kernel), pair(stride), pair(padding), pair(dilation))
    return None if min(sizes.out) < 1 else sizes


def leading(value: Tensor, dim: int | None, number: int) -> Tensor:
    """Return a tensor that leads with the clients; what they have in common is repeated in view."""
    return value.expand(number, *value.shape) if dim is None else value.movedim(dim, 0)


def all_leading(
    dims: Dims, number: int, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arguments of a convolution, each leading with the clients."""
    own = None if bias is None else leading(bias, dims[2], number)
    return leading(x, dims[0], number), leading(weight, dims[1], number), own


def keep(ctx: Any, x: Tensor, kept: Tensor, bias: Tensor | None, sizes: Sizes) -> None:
    """Save what `cotangents` needs."""
    ctx.save_for_backward(x, kept)
    ctx.biased, ctx.sizes = bias is not None, sizes


def cotangents(ctx: Any, cotangent: Tensor, way: Way) -> tuple[Tensor | None, ...]:
    """Return the cotangents of input, weight, bias and sizes; None where nobody needs one."""
    x, kept = ctx.saved_tensors
    needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
    made = _Backward.apply(cotangent, x, kept, ctx.sizes, needs, way)  # type: ignore[no-untyped-call]
    return *(value if needed else None for value, needed in zip(made, needs, strict=True)), None


class _Backward(torch.autograd.Function):
    """The cotangents of input, weight and bias; one that nobody needs is a zero."""

    @staticmethod
    def forward(
        cotangent: Tensor, x: Tensor, kept: Tensor, sizes: Sizes, needs: Needs, way: Way
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_x, to_weight, to_bias = _backward(cotangent[None], x[None], kept[None], sizes, needs, way)
        return to_x[0], to_weight[0], to_bias[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.way = inputs[5]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(f"{ctx.way.name} are for training: they have no second derivative")

    @staticmethod
    def vmap(
        info: Any, dims: Dims, cotangent: Tensor, x: Tensor, kept: Tensor, sizes: Sizes, needs: Needs, way: Way
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        cotangent, x, kept = (leading(v, d, info.batch_size) for v, d in zip((cotangent, x, kept), dims, strict=False))
        return _backward(cotangent, x, kept, sizes, needs, way), (0, 0, 0)


def _backward(
    cotangent: Tensor, x: Tensor, kept: Tensor, sizes: Sizes, needs: Needs, way: Way
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = cotangent.new_zeros(len(cotangent))
    with torch._C.DisableTorchFunction():  # hundreds of small operations need not pass through the mode
        return (
            way.by_input(cotangent, kept, sizes) if needs[0] else nothing,
            way.by_weight(cotangent, x, kept, sizes) if needs[1] else nothing,
            cotangent.sum((1, 3, 4)) if needs[2] else nothing,
        )
