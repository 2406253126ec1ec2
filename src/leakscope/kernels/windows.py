"""Convolutions of many clients as products over windows, and their derivatives.

A convolution of few channels is slow: a vector register holds more numbers than there are channels. So images come last in
memory: with rows laid out as width, channel, height, image, one product serves all rows of all images. The rows that a kernel
reads become channels (`Folded`); the inputs of output column j are then a window X_j of that matrix (windows overlap):

    Y_j = W X_j,    W' = sum over j of Y'_j X_j^T,    X' = the same sum with the kernel turned round, phase by phase of the stride.

Clients are processed in sequence, so that one client's data stays in the cache; the loops over them run as TorchScript, which
does not hold Python's lock. Every tensor has a leading client dimension.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.kernels.convolutions import Convolving, Dims, Sizes, all_leading, cotangents, register, save, sized

NARROW = 48  # kernel gradients of fewer numbers are computed as out x kernel, larger ones transposed


class Windowed(Convolving):
    """Inside this context every ungrouped 2-D convolution of many clients is computed as products over windows."""

    def __init__(self) -> None:
        """Set up the context."""
        super().__init__(sized(_compute))


def _compute(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
    out: Tensor = _Convolution.apply(x, weight, bias, sizes)  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    """`x * w + b`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
        return convolve(x[None], weight[None], None if bias is None else bias[None], sizes)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Sizes], output: Tensor) -> None:
        del output
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        return cotangents(ctx, cotangent, "windows")

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, int]:
        arguments = all_leading(dims, info.batch_size, x, weight, bias)
        return torch.ops.leakscope.windows(*arguments, sizes.numbers()), 0


@dataclass(frozen=True, slots=True)
class Fold:
    """Which rows become channels: target row t reads the source rows `first + step t + apart i`, i below `slots`.

    `left` columns of zeros precede those of the source; `columns` is the total.
    """

    first: int
    apart: int
    slots: int
    step: int
    rows: int
    left: int
    columns: int


class Folded:
    """A buffer for one client's rows as channels, columns x slots x channels x rows x images; its padding stays zero."""

    def __init__(self, fold: Fold, like: Tensor) -> None:
        """Allocate the buffer for clients shaped like `like`, width x channels x height x images."""
        width, channels, height, images = like.shape
        above = max(0, -fold.first)
        last = fold.first + fold.apart * (fold.slots - 1) + fold.step * (fold.rows - 1)
        whole = above + max(height, last + 1)
        padded = like.new_zeros(width, channels, whole, images)
        room = like.new_zeros(fold.columns, fold.slots, channels, fold.rows, images)
        taken = min(width, fold.columns - fold.left)
        steps = (channels * whole, fold.apart, whole, fold.step)
        shape = (taken, fold.slots, channels, fold.rows, images)
        inner = padded[:, :, above : above + height]
        met = padded.as_strided(shape, (*(step * images for step in steps), 1), (above + fold.first) * images)
        self.room = [inner, room[fold.left : fold.left + taken], met]  # see `_fill`
        self.matrix = room.view(fold.columns, fold.slots * channels, fold.rows * images)

    def multiply(
        self, sources: Tensor, kernels: Tensor, windows: Tensor, out: Tensor, bias: Tensor | None = None
    ) -> None:
        """Write the products of each client's matrix with its windows, plus its bias."""
        MULTIPLY(sources, self.room, kernels, windows, out, None if bias is None else bias[:, None, :, None])

    def spread(self, sources: Tensor, kernels: list[Tensor], windows: list[Tensor], targets: list[Tensor]) -> None:
        """Write the products of several jobs into separate targets, clients x columns x out x rows x images."""
        shaped = [target.new_empty(target.shape[1:]) for target in targets]
        SPREAD(sources, self.room, kernels, windows, [each.flatten(2) for each in shaped], shaped, targets)

    def correlate(self, sources: Tensor, slopes: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each client the sum over columns of its cotangents times its windows, and the sum of the cotangents."""
        low = windows.shape[1] < NARROW
        factors, seen = (slopes, windows.mT) if low else (slopes.mT, windows)
        wide, out_channels = windows.shape[1], slopes.shape[2]
        part = slopes.new_empty(len(windows), *((out_channels, wide) if low else (wide, out_channels)))
        totals = slopes.new_empty(len(slopes), *part.shape[1:])
        sums = slopes.new_empty(len(slopes), out_channels)
        CORRELATE(sources, self.room, slopes, factors, seen, low, part, totals, sums)
        return totals if low else totals.mT, sums

    def windows(self, start: int, step: int, number: int, wide: int) -> Tensor:
        """Return a view of `number` windows, number x (wide slots channels) x (rows images)."""
        _, height, length = self.matrix.shape
        column = height * length
        return self.matrix.as_strided((number, wide * height, length), (step * column, length, 1), start * column)


def _fill(client: Tensor, room: list[Tensor]) -> None:
    """Load one client: padded first, then its rows at the places where kernels read them."""
    room[0].copy_(client)
    room[1].copy_(room[2])


def _multiply(
    sources: Tensor, room: list[Tensor], kernels: Tensor, windows: Tensor, out: Tensor, offsets: Tensor | None
) -> None:
    for client in range(sources.size(0)):
        _fill(sources[client], room)
        torch.bmm(kernels[client], windows, out=out[client])
        if offsets is not None:
            out[client].add_(offsets[client])


def _spread(
    sources: Tensor,
    room: list[Tensor],
    kernels: list[Tensor],
    windows: list[Tensor],
    products: list[Tensor],
    shaped: list[Tensor],
    targets: list[Tensor],
) -> None:
    for client in range(sources.size(0)):
        _fill(sources[client], room)
        for job in range(len(windows)):
            torch.bmm(kernels[job][client], windows[job], out=products[job])
            targets[job][client].copy_(shaped[job])


def _correlate(
    sources: Tensor,
    room: list[Tensor],
    slopes: Tensor,
    factors: Tensor,
    windows: Tensor,
    low: bool,
    part: Tensor,
    totals: Tensor,
    sums: Tensor,
) -> None:
    for client in range(sources.size(0)):
        _fill(sources[client], room)
        if low:
            torch.bmm(factors[client], windows, out=part)
        else:
            torch.bmm(windows, factors[client], out=part)
        torch.sum(part, [0], out=totals[client])
        torch.sum(slopes[client], [0, 2], out=sums[client])


def _script(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a loop over clients as TorchScript, which does not block the other cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted: Callable[..., None] = torch.jit.script(loop)
        return scripted


MULTIPLY, SPREAD, CORRELATE = _script(_multiply), _script(_spread), _script(_correlate)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
    """Return the convolution of x, clients x images x channels x height x width, with the kernels of each client."""
    (height, width), out_channels = sizes.out, sizes.channels[1]
    sources = _columns(x)
    images = sources.shape[-1]
    folded = Folded(_forward(sizes), sources[0])
    windows = folded.windows(0, sizes.stride[1], width, _span(sizes))
    kernels = _each_column(_stuffed(weight, sizes).permute(0, 1, 4, 3, 2).flatten(2), width)
    out = x.new_empty(len(x), width, out_channels, height * images)
    folded.multiply(sources, kernels, windows, out, bias)
    return _as_images(out.view(len(x), width, out_channels, height, images))


def by_weight(cotangent: Tensor, x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the kernels, clients x out x in x height x width, and of the bias."""
    (_, width), in_channels, (rows, _) = sizes.out, sizes.channels[0], sizes.kernel
    sources, slopes = _columns(x), _columns(cotangent).contiguous().flatten(3)
    folded = Folded(_forward(sizes), sources[0])
    products, bias = folded.correlate(sources, slopes, folded.windows(0, sizes.stride[1], width, _span(sizes)))
    apart: Tensor = products.unflatten(2, (_span(sizes), rows, in_channels))
    kernels = apart[:, :, :: sizes.dilation[1]].permute(0, 1, 4, 3, 2)
    return kernels.contiguous(), bias  # contiguous as weights are: Adam reads them often


def by_input(cotangent: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the input: for each phase of the stride a convolution with its part of the kernel."""
    (height, width), in_channels, (down, across) = sizes.image, sizes.channels[0], sizes.stride
    sources = _columns(cotangent)
    images = sources.shape[-1]
    phases = list(_phases(sources[0], _stuffed(weight, sizes), sizes))
    complete = sum(len(phase.columns) for phase in phases) == down * across
    whole = (cotangent.new_empty if complete else cotangent.new_zeros)(
        len(cotangent), width, in_channels, height, images
    )
    for phase in phases:
        if down == across == 1:
            phase.folded.multiply(sources, phase.kernels[0], phase.windows[0], whole.flatten(3))
        else:
            targets = [whole[:, column::across, :, phase.row :: down] for column in phase.columns]
            phase.folded.spread(sources, phase.kernels, phase.windows, targets)
    return _as_images(whole)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the stride by height: its first row and folded rows, and per phase by width the first column, kernels and windows."""

    row: int
    folded: Folded
    columns: list[int]
    kernels: list[Tensor]
    windows: list[Tensor]


def _phases(like: Tensor, weight: Tensor, sizes: Sizes) -> Iterator[Phase]:
    """Yield the phases that reach any output; `weight` has its dilation by width already removed."""
    (height, width), (down, across), (up, left) = sizes.image, sizes.stride, sizes.padding
    ends = [_met(column, left, across, _span(sizes), width) for column in range(min(across, width))]
    before = max([0, *(-start for _, start, _ in ends)])
    columns = before + max(sizes.out[1], *(start + wide + number - 1 for number, start, wide in ends))
    for row in range(min(down, height)):
        kernel_rows = [k for k in range(sizes.kernel[0]) if (row + up - k * sizes.dilation[0]) % down == 0][::-1]
        if not kernel_rows:
            continue
        first_row, last_row = kernel_rows[-1], kernel_rows[0] + 1
        row_step = kernel_rows[0] - kernel_rows[1] if len(kernel_rows) > 1 else 1
        met = [(row + up - k * sizes.dilation[0]) // down for k in kernel_rows]
        apart = met[1] - met[0] if len(met) > 1 else 1
        rows = len(range(row, height, down))
        folded = Folded(Fold(met[0], apart, len(met), 1, rows, before, columns), like)
        phase = Phase(row, folded, [], [], [])
        for column, (number, start, wide) in enumerate(ends):
            if not wide:
                continue
            turned = weight[:, :, :, first_row:last_row:row_step][..., (column + left) % across :: across].flip(-2, -1)
            phase.columns.append(column)
            phase.kernels.append(_each_column(turned.permute(0, 2, 4, 3, 1).flatten(2), number))
            phase.windows.append(folded.windows(before + start, 1, number, wide))
        yield phase


def _met(column: int, left: int, across: int, span: int, width: int) -> tuple[int, int, int]:
    """Return the number of columns of this phase, the first output that its first column reaches, and the outputs per column."""
    last, rest = divmod(column + left, across)
    wide = len(range(rest, span, across))
    return len(range(column, width, across)), last - wide + 1, wide


def _forward(sizes: Sizes) -> Fold:
    (height, width), (down, across), (up, left) = sizes.out, sizes.stride, sizes.padding
    columns = across * (width - 1) + _span(sizes)
    return Fold(-up, sizes.dilation[0], sizes.kernel[0], down, height, left, columns)


def _span(sizes: Sizes) -> int:
    """Return how many columns a kernel spans."""
    return sizes.dilation[1] * (sizes.kernel[1] - 1) + 1


def _stuffed(weight: Tensor, sizes: Sizes) -> Tensor:
    """Return kernels with zeros inserted between columns instead of dilation by width."""
    if sizes.dilation[1] == 1:
        return weight
    whole = weight.new_zeros(*weight.shape[:-1], _span(sizes))
    whole[..., :: sizes.dilation[1]] = weight
    return whole


def _each_column(kernels: Tensor, number: int) -> Tensor:
    """Return kernels for so many columns: clients x columns x out x in, one view for all columns."""
    return kernels.contiguous()[:, None].expand(-1, number, -1, -1)


def _columns(x: Tensor) -> Tensor:
    """Return clients x images x channels x height x width as clients x width x channels x height x images."""
    return x.permute(0, 4, 2, 3, 1)


def _as_images(columns: Tensor) -> Tensor:
    """Return the inverse of `_columns`, a view."""
    return columns.permute(0, 4, 2, 3, 1)


def _all_clients(x: Tensor, weight: Tensor, bias: Tensor | None, numbers: Sequence[int]) -> Tensor:
    with torch._C.DisableTorchFunction():  # skip the mode for hundreds of small operations
        return convolve(x, weight, bias, Sizes.of(numbers))


# a traced graph holds one operator instead of a loop over clients
_LIBRARY = torch.library.Library("leakscope", "FRAGMENT")
_LIBRARY.define("windows(Tensor x, Tensor weight, Tensor? bias, int[] sizes) -> Tensor")
_LIBRARY.impl("windows", _all_clients, "CompositeExplicitAutograd")

register("windows", by_input, lambda cotangent, x, _, sizes: by_weight(cotangent, x, sizes))
