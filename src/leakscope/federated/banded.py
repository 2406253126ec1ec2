"""Convolutions of many clients as products with bands (see `bands`): no module is rewritten.

Once clients have weights of their own, vmap turns their convolutions into one of many groups, which CPU libraries do at half
the speed and less. A torch function mode catches `nn.Conv2d`, `F.conv2d` and `torch.conv2d` above vmap and grad. First
derivatives only: this is for training, attacks differentiate twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.core.convolutions import Convolving, pair
from leakscope.federated.bands import Sizes, by_bands, by_input, convolve, gather_kernel, spread_kernel

Dims = tuple[int | None, ...]
Needs = tuple[bool, bool, bool]  # of input, weight, bias

FLAT = 16  # up to so many channels times kernel rows, the rows are made channels


class Banded(Convolving):
    """Inside this context every ungrouped 2-D convolution of many clients is computed as products with bands."""

    def __init__(self) -> None:
        """Convolve as below."""
        super().__init__(_conv2d)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    sizes = sizes_of(input, weight, stride, padding, dilation, groups)
    if sizes is None:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    here = sizes.channels[0]
    if here < here * sizes.kernel[0] <= FLAT:
        input, weight, sizes = _flattened(input, weight, sizes)
    out: Tensor = _Convolution.apply(input, weight, bias, sizes)[0]  # type: ignore[no-untyped-call]
    return out


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


def _flattened(x: Tensor, weight: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, Sizes]:
    """Return the same convolution with the rows of the kernel as channels: fewer and larger products, for few channels."""
    (py, px), (sy, sx), (dy, dx), (ky, kx) = sizes.padding, sizes.stride, sizes.dilation, sizes.kernel
    (height, _), (here, there) = sizes.out, sizes.channels
    rows = F.pad(x, (0, 0, py, py)).permute(2, 0, 3, 1)
    met = [rows[first : first + sy * (height - 1) + 1 : sy] for first in range(0, dy * ky, dy)]
    flat = Sizes((height, sizes.picture[1]), (here * ky, there), (1, kx), (1, sx), (0, px), (1, dx))
    return torch.stack(met, -1).flatten(3).permute(1, 3, 0, 2), weight.flatten(1, 2).unsqueeze(2), flat


class _Convolution(torch.autograd.Function):
    """`x * w + b`, and the bands of w, which the derivative uses again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor]:
        out, bands = _forward(x[None], weight[None], None if bias is None else bias[None], sizes)
        return out[0], bands[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Sizes], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])
        ctx.biased, ctx.sizes = inputs[2] is not None, inputs[3]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, bands = ctx.saved_tensors
        needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
        made = _Backward.apply(cotangent, x, bands, ctx.sizes, needs)  # type: ignore[no-untyped-call]
        return *(value if needed else None for value, needed in zip(made, needs, strict=True)), None

    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        x, weight = (leading(v, d, info.batch_size) for v, d in zip((x, weight), dims, strict=False))
        bias = None if bias is None else leading(bias, dims[2], info.batch_size)
        return _forward(x, weight, bias, sizes), (0, 0)


class _Backward(torch.autograd.Function):
    """The cotangents of input, weight and bias; one that nobody needs is a zero."""

    @staticmethod
    def forward(
        cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes, needs: Needs
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_x, to_weight, to_bias = _backward(cotangent[None], x[None], bands[None], sizes, needs)
        return to_x[0], to_weight[0], to_bias[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> None:
        del ctx, cotangents
        raise RuntimeError("bands are for training: they have no second derivative")

    @staticmethod
    def vmap(
        info: Any, dims: Dims, cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes, needs: Needs
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        cotangent, x, bands = (
            leading(v, d, info.batch_size) for v, d in zip((cotangent, x, bands), dims, strict=False)
        )
        return _backward(cotangent, x, bands, sizes, needs), (0, 0, 0)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor]:
    bands = spread_kernel(weight, sizes)
    return convolve(x, bands, bias, sizes), bands


def _backward(cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes, needs: Needs) -> tuple[Tensor, Tensor, Tensor]:
    nothing = cotangent.new_zeros(len(cotangent))
    with torch._C.DisableTorchFunction():  # hundreds of small operations need not pass through the mode
        return (
            by_input(cotangent, bands, sizes) if needs[0] else nothing,
            gather_kernel(by_bands(cotangent, x, bands, sizes), sizes) if needs[1] else nothing,
            cotangent.sum((1, 3, 4)) if needs[2] else nothing,
        )


def leading(value: Tensor, dim: int | None, number: int) -> Tensor:
    """Return a tensor that leads with the clients; what they have in common is repeated in view."""
    return value.expand(number, *value.shape) if dim is None else value.movedim(dim, 0)
