"""A convolution of many clients as products over windows, and its derivatives.

A convolution of few channels is slow: a vector of the processor holds more numbers than there are channels. So the pictures
come last: with rows laid out as width, channel, height, picture, one product serves all rows of all pictures of a batch. The
rows that a kernel meets are made channels (`Folded`); then the inputs of column j of the output are a window X_j of that
matrix, and windows overlap in memory:

    Y_j = W X_j,    W' = sum over j of Y'_j X_j^T,    X' = the same sum with the kernel turned round, phase by phase of the stride.

Clients follow one another, so that what one reads and writes stays in the processor's own cache. Every tensor leads with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.federated.bands import Sizes

NARROW = 48  # a kernel of fewer numbers is the row of its product, a larger one the column


@dataclass(frozen=True, slots=True)
class Fold:
    """Which rows become channels: target row t meets the source rows `first + step t + apart i`, i below `slots`.

    `left` columns of zeros come before those of the source, and `columns` are there in all.
    """

    first: int
    apart: int
    slots: int
    step: int
    rows: int
    left: int
    columns: int


class Folded:
    """Room for one client's rows as channels, columns x slots x channels x rows x pictures; what is padding stays zero."""

    def __init__(self, fold: Fold, like: Tensor) -> None:
        """Make room for clients such as `like`, width x channels x height x pictures."""
        width, channels, height, pictures = like.shape
        above = max(0, -fold.first)
        last = fold.first + fold.apart * (fold.slots - 1) + fold.step * (fold.rows - 1)
        whole = above + max(height, last + 1)
        padded = like.new_zeros(width, channels, whole, pictures)
        room = like.new_zeros(fold.columns, fold.slots, channels, fold.rows, pictures)
        taken = min(width, fold.columns - fold.left)
        steps = (channels * whole, fold.apart, whole, fold.step)
        shape = (taken, fold.slots, channels, fold.rows, pictures)
        self.inner = padded[:, :, above : above + height]
        self.met = padded.as_strided(shape, (*(step * pictures for step in steps), 1), (above + fold.first) * pictures)
        self.place = room[fold.left : fold.left + taken]
        self.matrix = room.view(fold.columns, fold.slots * channels, fold.rows * pictures)

    def fill(self, client: Tensor) -> None:
        """Take in one client's numbers."""
        self.inner.copy_(client)
        self.place.copy_(self.met)

    def windows(self, start: int, step: int, number: int, wide: int) -> Tensor:
        """Return a view of so many windows, number x (wide slots channels) x (rows pictures)."""
        _, height, length = self.matrix.shape
        column = height * length
        return self.matrix.as_strided((number, wide * height, length), (step * column, length, 1), start * column)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
    """Return the convolution of x, clients x pictures x channels x height x width, with the kernels of each client."""
    (height, width), there = sizes.out, sizes.channels[1]
    sources = _columns(x)
    pictures = sources.shape[-1]
    folded = Folded(_forward(sizes), sources[0])
    windows = folded.windows(0, sizes.stride[1], width, _span(sizes))
    kernels = _each_column(_stuffed(weight, sizes).permute(0, 1, 4, 3, 2).flatten(2), width)
    made = x.new_empty(len(x), width, there, height * pictures)
    offsets = None if bias is None else bias[:, None, :, None].unbind(0)
    for place, (client, kernel, out) in enumerate(zip(sources, kernels, made, strict=True)):
        folded.fill(client)
        torch.bmm(kernel, windows, out=out)
        if offsets is not None:
            out.add_(offsets[place])
    return _pictures(made.view(len(x), width, there, height, pictures))


def by_weight(cotangent: Tensor, x: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the kernels, clients x out x in x height x width."""
    (_, width), (here, there), (rows, _) = sizes.out, sizes.channels, sizes.kernel
    sources, cotangents = _columns(x), _columns(cotangent).contiguous().flatten(3)
    folded = Folded(_forward(sizes), sources[0])
    windows = folded.windows(0, sizes.stride[1], width, _span(sizes))
    wide = windows.shape[1]
    narrow = wide < NARROW
    made = x.new_empty(len(x), there, wide) if narrow else x.new_empty(len(x), wide, there)
    parts = x.new_empty(width, *made.shape[1:])
    for client, slope, out in zip(sources, cotangents, made, strict=True):
        folded.fill(client)
        factors = (slope, windows.mT) if narrow else (windows, slope.mT)
        torch.bmm(*factors, out=parts)
        torch.sum(parts, 0, out=out)
    apart: Tensor = (made if narrow else made.mT).unflatten(2, (_span(sizes), rows, here))
    return apart[:, :, :: sizes.dilation[1]].permute(0, 1, 4, 3, 2).contiguous()  # as weights are: Adam reads it often


def by_input(cotangent: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the input: for each phase of the stride a convolution with its part of the kernel."""
    (height, width), here, (down, across) = sizes.picture, sizes.channels[0], sizes.stride
    sources = _columns(cotangent)
    pictures = sources.shape[-1]
    phases = list(_phases(sources[0], _stuffed(weight, sizes), sizes))
    alone = down == across == 1
    made = cotangent.new_empty if len(phases) == down * across else cotangent.new_zeros
    whole = made(len(cotangent), width, here, height, pictures)
    for place, (client, target) in enumerate(zip(sources, whole, strict=True)):
        for phase in phases:
            if phase.fills:
                phase.folded.fill(client)
            kernel = phase.kernels[place]
            if alone:
                torch.bmm(kernel, phase.windows, out=target.view(width, here, height * pictures))
            else:
                part = target[phase.column :: across, :, phase.row :: down]
                part.copy_(torch.bmm(kernel, phase.windows).view(part.shape))
    return _pictures(whole)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the stride: its first row and column, the kernels of all clients, the windows, and who fills them."""

    row: int
    column: int
    kernels: tuple[Tensor, ...]
    windows: Tensor
    folded: Folded
    fills: bool


def _phases(like: Tensor, weight: Tensor, sizes: Sizes) -> Iterator[Phase]:
    """Yield the phases that meet any output; `weight` has its columns side by side, whatever the dilation."""
    (height, width), (down, across), (up, left) = sizes.picture, sizes.stride, sizes.padding
    ends = [_met(column, left, across, _span(sizes), width) for column in range(min(across, width))]
    before = max([0, *(-start for _, start, _ in ends)])
    columns = before + max(sizes.out[1], *(start + wide + number - 1 for number, start, wide in ends))
    for row in range(min(down, height)):
        kernel_rows = [k for k in range(sizes.kernel[0]) if (row + up - k * sizes.dilation[0]) % down == 0][::-1]
        if not kernel_rows:
            continue
        met = [(row + up - k * sizes.dilation[0]) // down for k in kernel_rows]
        apart = met[1] - met[0] if len(met) > 1 else 1
        fold = Fold(met[0], apart, len(met), 1, len(range(row, height, down)), before, columns)
        folded, fills = Folded(fold, like), True
        for column, (number, start, wide) in enumerate(ends):
            if not wide:
                continue
            turned = weight[:, :, :, kernel_rows][..., (column + left) % across :: across].flip(-1)
            kernels = _each_column(turned.permute(0, 2, 4, 3, 1).flatten(2), number)
            yield Phase(row, column, kernels, folded.windows(before + start, 1, number, wide), folded, fills)
            fills = False


def _met(column: int, left: int, across: int, span: int, width: int) -> tuple[int, int, int]:
    """Return how many columns this phase has, the first output its first column meets, and how many outputs each meets."""
    last, rest = divmod(column + left, across)
    wide = len(range(rest, span, across))
    return len(range(column, width, across)), last - wide + 1, wide


def _forward(sizes: Sizes) -> Fold:
    (height, width), (down, across), (up, left) = sizes.out, sizes.stride, sizes.padding
    columns = across * (width - 1) + _span(sizes)
    return Fold(-up, sizes.dilation[0], sizes.kernel[0], down, height, left, columns)


def _span(sizes: Sizes) -> int:
    """Return how many columns a kernel reaches over."""
    return sizes.dilation[1] * (sizes.kernel[1] - 1) + 1


def _stuffed(weight: Tensor, sizes: Sizes) -> Tensor:
    """Return kernels without dilation by width: zeros stand between the columns."""
    if sizes.dilation[1] == 1:
        return weight
    whole = weight.new_zeros(*weight.shape[:-1], _span(sizes))
    whole[..., :: sizes.dilation[1]] = weight
    return whole


def _each_column(kernels: Tensor, number: int) -> tuple[Tensor, ...]:
    """Return each client's kernel, as one view for so many columns."""
    return kernels.contiguous()[:, None].expand(-1, number, -1, -1).unbind(0)


def _columns(x: Tensor) -> Tensor:
    """Return clients x pictures x channels x height x width as clients x width x channels x height x pictures."""
    return x.permute(0, 4, 2, 3, 1)


def _pictures(columns: Tensor) -> Tensor:
    """Return the reverse of `_columns`; in memory all stays as it is."""
    return columns.permute(0, 4, 2, 3, 1)
