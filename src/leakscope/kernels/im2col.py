"""Convolutions as matrix products by a torch function mode, above vmap and grad; no module is rewritten.

With separate weights in every trial a convolution becomes a grouped one, which CPU and GPU libraries do slowly; as columns and a
product it becomes a batched matrix product, which is fast. Columns are made by strided copies on a CPU. On a CUDA device they are
one copy of a view of all windows: torch's `unfold` launches a kernel per image, most of the time of an evaluation of many small
images (`fold` does not). For compiled code `unfold` is used, which the compiler fuses.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.kernels.convolutions import Convolving, ConvSettings

Window = tuple[int, int, int, int, int, int, int, int]  # kernel, stride, dilation, output: height and width each


def _slices(window: Window) -> list[tuple[slice, slice]]:
    """Return for each kernel position the rows and columns of the padded input that it reads."""
    ky, kx, sy, sx, dy, dx, height, width = window
    return [
        (slice(i * dy, i * dy + sy * (height - 1) + 1, sy), slice(j * dx, j * dx + sx * (width - 1) + 1, sx))
        for i in range(ky)
        for j in range(kx)
    ]


def by_copies(x: Tensor, window: Window) -> Tensor:
    """Return N x C x H x W as N x C x K x (output size), by strided copies: three times as fast as `unfold` on CPU."""
    return torch.stack([x[..., rows, columns] for rows, columns in _slices(window)], dim=2)


def by_view(x: Tensor, window: Window) -> Tensor:
    """Return the same in one copy for any number of images."""
    ky, kx, sy, sx, dy, dx, _, _ = window
    tall = x.unfold(2, dy * (ky - 1) + 1, sy)[..., ::dy]
    windows = tall.unfold(3, dx * (kx - 1) + 1, sx)[..., ::dx]  # N x C x height x width x ky x kx
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(2, 3)


def back_by_copies(columns: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
    """Return the transpose of `by_copies`: every column value added back to its pixel."""
    whole = columns.new_zeros(*columns.shape[:2], *size)
    for k, (rows, across) in enumerate(_slices(window)):
        whole[..., rows, across] += columns[:, :, k]
    return whole


def back_by_fold(columns: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
    """Return the same by torch's `fold`."""
    ky, kx, sy, sx, dy, dx, _, _ = window
    return F.fold(columns.flatten(3).flatten(1, 2), size, (ky, kx), dilation=(dy, dx), stride=(sy, sx))


class _Columns(torch.autograd.Function):
    """N x C x H x W -> N x C x K x (output size)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, window: Window) -> Tensor:
        return by_copies(x, window) if x.device.type == "cpu" else by_view(x, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: Tensor) -> None:
        del output
        ctx.window, ctx.size = inputs[1], (inputs[0].shape[-2], inputs[0].shape[-1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _Images.apply(cotangent, ctx.window, ctx.size), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, window: None) -> Tensor:
        del window
        columns: Tensor = _Columns.apply(tangent, ctx.window)  # type: ignore[no-untyped-call]
        return columns


class _Images(torch.autograd.Function):
    """The transpose of `_Columns`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(columns: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
        back = back_by_copies if columns.device.type == "cpu" else back_by_fold
        return back(columns, window, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window, tuple[int, int]], output: Tensor) -> None:
        del output
        ctx.window, ctx.size = inputs[1], inputs[2]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return _Columns.apply(cotangent, ctx.window), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, window: None, size: None) -> Tensor:
        del window, size
        images: Tensor = _Images.apply(tangent, ctx.window, ctx.size)  # type: ignore[no-untyped-call]
        return images


def _compute(
    x: Tensor, weight: Tensor, bias: Tensor | None, settings: ConvSettings, *, compiled: bool = False
) -> Tensor | None:
    """Return the convolution as a product with columns; None if grouped or invalid. `compiled`: the compiler makes the columns (CUDA)."""
    if settings.groups != 1:
        return None
    (sy, sx), (py, px), (dy, dx) = settings.stride, settings.padding, settings.dilation
    kernel = (weight.shape[-2], weight.shape[-1])
    height = (x.shape[-2] + 2 * py - dy * (kernel[0] - 1) - 1) // sy + 1
    width = (x.shape[-1] + 2 * px - dx * (kernel[1] - 1) - 1) // sx + 1
    if height < 1 or width < 1:
        return None  # torch raises the error
    if kernel == (1, 1) and (py, px) == (0, 0):
        columns = x[..., ::sy, ::sx].flatten(2)
    elif compiled and x.device.type != "cpu":
        columns = F.unfold(x, kernel, dilation=(dy, dx), padding=(py, px), stride=(sy, sx))
    else:
        window = (*kernel, sy, sx, dy, dx, height, width)
        padded = F.pad(x, (px, px, py, py)) if py or px else x
        columns = _Columns.apply(padded, window).flatten(3).flatten(1, 2)  # type: ignore[no-untyped-call]
    out = weight.flatten(1) @ columns
    if bias is not None:
        out = out + bias[:, None]
    return out.reshape(*out.shape[:-1], height, width)


class Im2col(Convolving):
    """Inside this context every ungrouped 2-D convolution is computed as a matrix product."""

    def __init__(self, *, compiled: bool = False) -> None:
        """Set up the context; `compiled` if its content is compiled afterwards."""
        super().__init__(partial(_compute, compiled=compiled))
