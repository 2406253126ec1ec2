"""Convolutions of many clients as products with bands (see `bands` and `products`): no module is rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.kernels.bands import Sizes, by_bands, by_input, convolve, gather_kernel, spread_kernel
from leakscope.kernels.convolutions import Convolving
from leakscope.kernels.products import WAYS, Dims, Way, all_leading, cotangents, keep, sizes_of


def _by_weight(cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    return gather_kernel(by_bands(cotangent, x, bands, sizes), sizes), cotangent.sum((1, 3, 4))


WAYS["bands"] = Way(by_input, _by_weight)
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
        keep(ctx, inputs[0], output[1], *inputs[2:])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return cotangents(ctx, cotangent, "bands")

    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _forward(*all_leading(dims, info.batch_size, x, weight, bias), sizes), (0, 0)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor]:
    bands = spread_kernel(weight, sizes)
    return convolve(x, bands, bias, sizes), bands
