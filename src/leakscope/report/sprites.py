"""Reels: the pictures that one spot of the page can show, encoded as sprites within a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.report.animation import thin
from leakscope.report.picture import Pixels, coarsen, data_uri, pixels, shrink, sprite

if TYPE_CHECKING:
    from torch import Tensor

BUDGET = 3_000_000
TRIED, TRIED_BYTES = 12, 2_000_000
CELL, NARROW_CELL, LARGEST_CELL, LARGE_CELL = 84, 56, 128, 232


@dataclass(frozen=True, slots=True)
class Detail:
    """How pictures are drawn: sides of at most `side`, at most `frames` to a film, those on the way coarsened."""

    side: int = 256
    frames: int = 18
    coarse: float = 0.0


# From all that was stored to what is left of it in the fewest bytes. Size is given up last.
LADDER = (
    Detail(),
    Detail(coarse=0.25),
    Detail(coarse=0.5),
    Detail(frames=12, coarse=0.5),
    Detail(frames=12, coarse=1.0),
    Detail(frames=8, coarse=1.0),
    Detail(frames=8, coarse=1.5),
    Detail(frames=5, coarse=1.5),
    Detail(side=128, frames=5, coarse=1.5),
    Detail(side=96, frames=5, coarse=1.5),
    Detail(side=64, frames=5, coarse=1.5),
    Detail(side=48, frames=4, coarse=1.5),
    Detail(side=32, frames=4, coarse=1.5),
)


@dataclass(frozen=True, slots=True, eq=False)
class Reel:
    """Pictures of one size: stills, which are drawn as they are, then a film, whose last frame is too."""

    stills: tuple[Pixels, ...]
    film: tuple[Pixels, ...] = ()

    def kept(self, detail: Detail) -> list[int]:
        """Return the frames of the film that are drawn."""
        return thin(range(len(self.film)), detail.frames)

    def encode(self, detail: Detail) -> bytes:
        """Return the sprite."""
        last = len(self.film) - 1
        frames = [(shrink(self.film[i], detail.side), i == last) for i in self.kept(detail)]
        return sprite(
            [shrink(image, detail.side) for image in self.stills]
            + [image if exact else coarsen(image, detail.coarse) for image, exact in frames]
        )

    @property
    def size(self) -> int:
        """Return the bytes of all pictures as they are."""
        return sum(image.size for image in (*self.stills, *self.film))

    def rule(self, name: str, detail: Detail) -> str:
        """Return the CSS rule that makes class `name` show this reel."""
        rows, columns = shrink(self.stills[0], detail.side).shape[:2]
        count = len(self.stills) + len(self.kept(detail))
        wide, narrow, large = zoom(columns, CELL), NARROW_CELL / columns, zoom(columns, LARGE_CELL)
        return (
            f".{name}{{--rows:{rows};--columns:{columns};--count:{count};--wide:{wide:g};--narrow:{narrow:g};"
            f"--large:{large:g};background-image:url({data_uri(self.encode(detail))})}}"
        )


def zoom(columns: int, cell: int) -> float:
    """Return how much to enlarge a picture: a whole number that fills a cell, or less than 1 for one that is too large.

    >>> zoom(28, 96), zoom(32, 96), zoom(100, 96), zoom(256, 96)
    (3, 3, 1, 0.5)
    """
    most = max(cell, LARGEST_CELL)
    return max(1, cell // columns) if columns <= most else most / columns


def film_reel(truth: Tensor, frames: Tensor) -> Reel:
    """Return truth, then the film."""
    return Reel((pixels(truth),), tuple(pixels(frame) for frame in frames))


def still_reel(pictures: Sequence[Tensor]) -> Reel:
    """Return pictures that are all drawn as they are."""
    return Reel(tuple(pixels(picture) for picture in pictures))


def choose_detail(kinds: Sequence[Sequence[Reel]], *, budget: int = BUDGET) -> Detail:
    """Return the first detail at which all sprites take about `budget` bytes, judged by a dozen reels of each kind.

    If none does, the last: a page that is too large is better than none.
    """
    tried = [(_some(reels), len(reels)) for reels in kinds if reels]
    for detail in LADDER:
        if sum(sum(len(reel.encode(detail)) for reel in some) * n / len(some) for some, n in tried) <= budget:
            break
    return detail


def _some(reels: Sequence[Reel]) -> Sequence[Reel]:
    """Return a dozen reels, evenly spread; fewer, at least two, where a dozen would be megabytes of pictures."""
    count = max(2, min(TRIED, TRIED_BYTES // max(1, reels[0].size)))
    return thin(reels, count)
