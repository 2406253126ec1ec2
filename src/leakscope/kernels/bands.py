"""A convolution of many clients as products with bands, and its derivatives.

A convolution of few channels is slow: a vector of the processor holds more numbers than there are channels. So some
neighbouring outputs of a row are computed together. With pictures laid out as height, picture, width, channel, the inputs
that one kernel row meets are one matrix X, and the kernel row is a band, a matrix with the kernel along its diagonal:

    B[x, c, j, o] = w[o, c, x - s j]  (0 outside the kernel),    y = sum over kernel rows of X B.

Nothing is copied into columns, and the derivatives by input and kernel are the same products transposed. All functions take
many clients at once: every tensor leads with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

WIDE = 48  # about so many numbers of an output row are computed together


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a convolution: pairs by height and width, `channels` in and out."""

    picture: tuple[int, int]
    channels: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Sizes:
        """Return the sizes that `numbers` gave."""
        first, second = numbers[::2], numbers[1::2]
        return cls(*zip(first, second, strict=True))

    def numbers(self) -> list[int]:
        """Return all sizes in a row, for an operator of torch."""
        pairs = (self.picture, self.channels, self.kernel, self.stride, self.padding, self.dilation)
        return [number for pair in pairs for number in pair]

    @property
    def out(self) -> tuple[int, int]:
        """Return height and width of what comes out."""
        sides = zip(self.picture, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in sides)
        return height, width

    @property
    def block(self) -> int:
        """Return how many outputs of a row a band makes."""
        width = self.out[1]
        blocks = -(-width * self.channels[1] // WIDE)
        return -(-width // min(width, blocks))

    @property
    def reach(self) -> int:
        """Return how many inputs of a row a band meets, padding included."""
        return self.stride[1] * (self.block - 1) + self.dilation[1] * (self.kernel[1] - 1) + 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One product: which inputs (rows of one phase of the stride, columns) a part of a kernel row's band turns into what."""

    row: int
    phase: int
    inputs: tuple[slice, slice]
    band: tuple[slice, slice]
    outputs: tuple[slice, slice]


@lru_cache(maxsize=256)
def pieces(sizes: Sizes, pictures: int) -> tuple[Piece, ...]:
    """Return the products that make up a convolution; what would meet only padding is left out."""
    found = []
    for row in range(sizes.kernel[0]):
        down, phase = divmod(row * sizes.dilation[0] - sizes.padding[0], sizes.stride[0])
        rows = len(range(phase, sizes.picture[0], sizes.stride[0]))
        first, last = max(0, -down), min(sizes.out[0], rows - down)
        if first >= last:
            continue
        above = slice((first + down) * pictures, (last + down) * pictures)
        to = slice(first * pictures, last * pictures)
        for beside, band, block in _columns(sizes):
            found.append(Piece(row, phase, (above, beside), band, (to, block)))
    return tuple(found)


def _columns(sizes: Sizes) -> Iterator[tuple[slice, tuple[slice, slice], slice]]:
    """Yield for each block of an output row the columns of the input it meets, their part of the band, and its own columns."""
    (here, there), width, step = sizes.channels, sizes.out[1], sizes.stride[1]
    for left in range(0, width, sizes.block):
        right = min(left + sizes.block, width)
        start = step * left - sizes.padding[1]
        end = start + sizes.reach - step * (sizes.block - (right - left))
        low, high = max(0, start), min(sizes.picture[1], end)
        if low < high:
            band = (slice((low - start) * here, (high - start) * here), slice(0, (right - left) * there))
            yield slice(low * here, high * here), band, slice(left * there, right * there)


def spread_kernel(weight: Tensor, sizes: Sizes) -> Tensor:
    """Return the bands of kernels: clients x out x in x height x width to clients x height x (reach in) x (block out)."""
    (here, there), height = sizes.channels, sizes.kernel[0]
    bands = weight.new_zeros(len(weight), height, sizes.reach, here, sizes.block, there)
    _diagonals(bands, sizes).copy_(weight.permute(0, 3, 4, 2, 1).contiguous().unsqueeze(4))
    return bands.flatten(4).flatten(2, 3)


def gather_kernel(bands: Tensor, sizes: Sizes) -> Tensor:
    """Return the transpose of `spread_kernel`: the sums along the diagonals of bands."""
    (here, there), height = sizes.channels, sizes.kernel[0]
    apart = bands.view(len(bands), height, sizes.reach, here, sizes.block, there)
    return _diagonals(apart, sizes).sum(4).permute(0, 4, 3, 1, 2)


def _diagonals(bands: Tensor, sizes: Sizes) -> Tensor:
    """Return a view of the entries of bands that hold the kernel: clients x height x width x in x block x out."""
    client, row, across, here, along, there = bands.stride()
    shape = (len(bands), *sizes.kernel, sizes.channels[0], sizes.block, sizes.channels[1])
    steps = (client, row, across * sizes.dilation[1], here, along + across * sizes.stride[1], there)
    return bands.as_strided(shape, steps)


def convolve(x: Tensor, bands: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
    """Return the convolution of x, clients x pictures x channels x height x width, with kernels spread into bands."""
    clients, pictures = x.shape[:2]
    (height, width), there = sizes.out, sizes.channels[1]
    start = x.new_zeros(()) if bias is None else bias[:, None, None, :]
    y = start.expand(clients, height * pictures, width, there).contiguous().flatten(2)
    phases = _phases(x, sizes)
    for piece in pieces(sizes, pictures):
        y[:, *piece.outputs].baddbmm_(phases[piece.phase][:, *piece.inputs], bands[:, piece.row, *piece.band])
    return _pictures(y.view(clients, height, pictures, width, there))


def by_input(cotangent: Tensor, bands: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the input, X' = Y' B^T."""
    clients, pictures = cotangent.shape[:2]
    (height, width), here, step = sizes.picture, sizes.channels[0], sizes.stride[0]
    counts = [len(range(phase, height, step)) for phase in range(step)]
    phases = [cotangent.new_zeros(clients, rows * pictures, width * here) for rows in counts]
    y = _phases(cotangent)[0]
    for piece in pieces(sizes, pictures):
        part = phases[piece.phase][:, *piece.inputs]
        part.baddbmm_(y[:, *piece.outputs], bands[:, piece.row, *piece.band].mT)
    apart = [rows.view(clients, count, pictures, width, here) for rows, count in zip(phases, counts, strict=True)]
    if step == 1:
        return _pictures(apart[0])
    whole = cotangent.new_empty(clients, height, pictures, width, here)
    for phase, rows in enumerate(apart):
        whole[:, phase::step] = rows
    return _pictures(whole)


def by_bands(cotangent: Tensor, x: Tensor, bands: Tensor, sizes: Sizes) -> Tensor:
    """Return the cotangent of the bands, B' = X^T Y'; entries off the diagonals are not made zero."""
    made = bands.new_zeros(bands.shape)
    phases, y = _phases(x, sizes), _phases(cotangent)[0]
    for piece in pieces(sizes, x.shape[1]):
        part = phases[piece.phase][:, *piece.inputs]
        made[:, piece.row, *piece.band].baddbmm_(part.mT, y[:, *piece.outputs])
    return made


def _phases(x: Tensor, sizes: Sizes | None = None) -> list[Tensor]:
    """Return the rows of pictures that each phase of the stride meets, clients x (height pictures) x (width channels)."""
    step = 1 if sizes is None else sizes.stride[0]
    rows = x.permute(0, 3, 1, 4, 2).contiguous().flatten(3)
    return [rows[:, phase::step].flatten(1, 2) for phase in range(step)]


def _pictures(rows: Tensor) -> Tensor:
    """Return rows as clients x pictures x channels x height x width; in memory they stay as they are."""
    return rows.permute(0, 2, 4, 1, 3)
