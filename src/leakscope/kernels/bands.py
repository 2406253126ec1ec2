"""Convolutions of many clients as products with band matrices, and their derivatives.

A convolution of few channels is slow: a vector register holds more numbers than there are channels. So several neighbouring
outputs of a row are computed together. With images laid out as height, image, width, channel, the inputs of one kernel row are
one matrix X, and the kernel row is a band matrix with the kernel along its diagonal:

    B[x, c, j, o] = w[o, c, x - s j]  (0 outside the kernel),    Y = sum over kernel rows of X B,

    X' = Y' B^T,    B' = X^T Y',    w' = the sums of B' along its diagonals.

No columns are copied, and the derivatives are the same products transposed. Every tensor has a leading client dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.kernels.convolutions import Convolving, Dims, Sizes, all_leading, cotangents, register, save, sized

WIDE = 48  # numbers of an output row that are computed together, approximately
FLAT = 16  # up to this many channels times kernel rows, rows become channels


class Banded(Convolving):
    """Inside this context every ungrouped 2-D convolution of many clients is computed as products with bands."""

    def __init__(self) -> None:
        """Set up the context."""
        super().__init__(sized(_compute))


def _compute(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
    in_channels = sizes.channels[0]
    if in_channels < in_channels * sizes.kernel[0] <= FLAT:
        x, weight, sizes = _flattened(x, weight, sizes)
    out: Tensor = _Convolution.apply(x, weight, bias, sizes)[0]  # type: ignore[no-untyped-call]
    return out


def _flattened(x: Tensor, weight: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, Sizes]:
    """Return the same convolution with kernel rows as channels: fewer and larger products, for few channels."""
    (py, px), (sy, sx), (dy, dx), (ky, kx) = sizes.padding, sizes.stride, sizes.dilation, sizes.kernel
    (height, _), (in_channels, out_channels) = sizes.out, sizes.channels
    rows = F.pad(x, (0, 0, py, py)).permute(2, 0, 3, 1)
    windows = [rows[first : first + sy * (height - 1) + 1 : sy] for first in range(0, dy * ky, dy)]
    flat = Sizes((height, sizes.image[1]), (in_channels * ky, out_channels), (1, kx), (1, sx), (0, px), (1, dx))
    return torch.stack(windows, -1).flatten(3).permute(1, 3, 0, 2), weight.flatten(1, 2).unsqueeze(2), flat


class _Convolution(torch.autograd.Function):
    """`x * w + b`, and the bands of w, which the derivative reuses."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor]:
        out, bands = _forward(x[None], weight[None], None if bias is None else bias[None], sizes)
        return out[0], bands[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Sizes], output: Sequence[Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        save(ctx, inputs[0], output[1], *inputs[2:])

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


def block_of(sizes: Sizes) -> int:
    """Return how many outputs of a row one band computes."""
    width = sizes.out[1]
    blocks = -(-width * sizes.channels[1] // WIDE)
    return -(-width // min(width, blocks))


def reach_of(sizes: Sizes) -> int:
    """Return how many inputs of a row one band reads, padding included."""
    return sizes.stride[1] * (block_of(sizes) - 1) + sizes.dilation[1] * (sizes.kernel[1] - 1) + 1


@dataclass(frozen=True, slots=True)
class Product:
    """One product: the inputs (rows of one phase of the stride, columns), the part of a kernel row's band, and the outputs."""

    row: int
    phase: int
    inputs: tuple[slice, slice]
    band: tuple[slice, slice]
    outputs: tuple[slice, slice]


@lru_cache(maxsize=256)
def products(sizes: Sizes, images: int) -> tuple[Product, ...]:
    """Return the products of a convolution, without those that would read only padding."""
    parts = []
    for row in range(sizes.kernel[0]):
        down, phase = divmod(row * sizes.dilation[0] - sizes.padding[0], sizes.stride[0])
        rows = len(range(phase, sizes.image[0], sizes.stride[0]))
        first, last = max(0, -down), min(sizes.out[0], rows - down)
        if first >= last:
            continue
        above = slice((first + down) * images, (last + down) * images)
        to = slice(first * images, last * images)
        for beside, band, block in _columns(sizes):
            parts.append(Product(row, phase, (above, beside), band, (to, block)))
    return tuple(parts)


def _columns(sizes: Sizes) -> Iterator[tuple[slice, tuple[slice, slice], slice]]:
    """Yield for each block of an output row its input columns, their part of the band, and its output columns."""
    (in_channels, out_channels), width, step = sizes.channels, sizes.out[1], sizes.stride[1]
    for left in range(0, width, block_of(sizes)):
        right = min(left + block_of(sizes), width)
        start = step * left - sizes.padding[1]
        end = start + reach_of(sizes) - step * (block_of(sizes) - (right - left))
        low, high = max(0, start), min(sizes.image[1], end)
        if low < high:
            band = (
                slice((low - start) * in_channels, (high - start) * in_channels),
                slice(0, (right - left) * out_channels),
            )
            yield slice(low * in_channels, high * in_channels), band, slice(left * out_channels, right * out_channels)


def spread_kernel(weight: Tensor, sizes: Sizes) -> Tensor:
    """Return the bands of kernels: clients x out x in x height x width to clients x height x (reach in) x (block out)."""
    (in_channels, out_channels), height = sizes.channels, sizes.kernel[0]
    bands = weight.new_zeros(len(weight), height, reach_of(sizes), in_channels, block_of(sizes), out_channels)
    _diagonals(bands, sizes).copy_(weight.permute(0, 3, 4, 2, 1).contiguous().unsqueeze(4))
    return bands.flatten(4).flatten(2, 3)


def gather_kernel(bands: Tensor, sizes: Sizes) -> Tensor:
    """Return the transpose of `spread_kernel`: the sums along the diagonals of bands."""
    (in_channels, out_channels), height = sizes.channels, sizes.kernel[0]
    apart = bands.view(len(bands), height, reach_of(sizes), in_channels, block_of(sizes), out_channels)
    return _diagonals(apart, sizes).sum(4).permute(0, 4, 3, 1, 2)


def _diagonals(bands: Tensor, sizes: Sizes) -> Tensor:
    """Return a view of the entries of bands that hold the kernel: clients x height x width x in x block x out."""
    client, row, across, channel_in, along, channel_out = bands.stride()
    shape = (len(bands), *sizes.kernel, sizes.channels[0], block_of(sizes), sizes.channels[1])
    steps = (client, row, across * sizes.dilation[1], channel_in, along + across * sizes.stride[1], channel_out)
    return bands.as_strided(shape, steps)


def convolve(x: Tensor, bands: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
    """Return the convolution of x, clients x images x channels x height x width, with kernels spread into bands."""
    clients, images = x.shape[:2]
    (height, width), out_channels = sizes.out, sizes.channels[1]
    start = x.new_zeros(()) if bias is None else bias[:, None, None, :]
    y = start.expand(clients, height * images, width, out_channels).contiguous().flatten(2)
    phases = _phases(x, sizes)
    for product in products(sizes, images):
        y[:, *product.outputs].baddbmm_(phases[product.phase][:, *product.inputs], bands[:, product.row, *product.band])
    return _as_images(y.view(clients, height, images, width, out_channels))


def by_input(cotangent: Tensor, bands: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the input, X' = Y' B^T."""
    clients, images = cotangent.shape[:2]
    (height, width), in_channels, step = sizes.image, sizes.channels[0], sizes.stride[0]
    counts = [len(range(phase, height, step)) for phase in range(step)]
    phases = [cotangent.new_zeros(clients, rows * images, width * in_channels) for rows in counts]
    y = _phases(cotangent)[0]
    for product in products(sizes, images):
        part = phases[product.phase][:, *product.inputs]
        part.baddbmm_(y[:, *product.outputs], bands[:, product.row, *product.band].mT)
    apart = [rows.view(clients, count, images, width, in_channels) for rows, count in zip(phases, counts, strict=True)]
    if step == 1:
        return _as_images(apart[0])
    whole = cotangent.new_empty(clients, height, images, width, in_channels)
    for phase, rows in enumerate(apart):
        whole[:, phase::step] = rows
    return _as_images(whole)


def by_bands(cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the bands, B' = X^T Y'; entries off the diagonals are not zeroed."""
    cotangents = bands.new_zeros(bands.shape)
    phases, y = _phases(x, sizes), _phases(cotangent)[0]
    for product in products(sizes, x.shape[1]):
        part = phases[product.phase][:, *product.inputs]
        cotangents[:, product.row, *product.band].baddbmm_(part.mT, y[:, *product.outputs])
    return cotangents


def _phases(x: Tensor, sizes: Sizes | None = None) -> list[Tensor]:
    """Return the image rows that each phase of the stride reads, clients x (height images) x (width channels)."""
    step = 1 if sizes is None else sizes.stride[0]
    rows = x.permute(0, 3, 1, 4, 2).contiguous().flatten(3)
    return [rows[:, phase::step].flatten(1, 2) for phase in range(step)]


def _as_images(rows: Tensor) -> Tensor:
    """Return a view of rows as clients x images x channels x height x width."""
    return rows.permute(0, 2, 4, 1, 3)


def _by_weight(cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    return gather_kernel(by_bands(cotangent, x, bands, sizes), sizes), cotangent.sum((1, 3, 4))


register("bands", by_input, _by_weight)
