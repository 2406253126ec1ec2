"""Films of an attack: the frames of one image, the timeline that one slider shares, and reels encoded within a budget of bytes.

A reel is what one spot of the page can show: stills and a film as one sprite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from leakscope.core.record import COURSE
from leakscope.report.pictures import Pixels, coarsen, data_uri, pixels, shrink, sprite

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

POSITIONS = 48
TRACE_POINTS = 80
BUDGET = 3_000_000
TRIED, TRIED_BYTES = 12, 2_000_000
CELL, NARROW_CELL, LARGEST_CELL, LARGE_CELL = 84, 56, 128, 232


def film(tensors: Mapping[str, Tensor], sample: int, last: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return the frames (S x ...) of one sample of a stored trial, and their iteration numbers.

    The start at iteration 0, the snapshots the trial reached before its `last` iteration, the result there. `sample` counts
    the attack's guesses, so pass the one that was paired with the truth. What was not stored is left out; the result is
    always there.
    """
    import torch

    frames, at = [unit(tensors["inputs"][sample])], [last]
    if "snapshots" in tensors and "snapshots_at" in tensors:
        steps = tensors["snapshots_at"]
        inner = [i for i, step in enumerate(steps.tolist()) if 0 < step < last]
        frames[:0] = [unit(tensors["snapshots"][i, sample]) for i in inner]
        at[:0] = [int(steps[i]) for i in inner]
    if "start" in tensors:
        frames, at = [unit(tensors["start"][sample]), *frames], [0, *at]
    return torch.stack(frames), tuple(at)


def trace(tensors: Mapping[str, Tensor]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return a trial's mismatch and the iterations it was seen at, thinned evenly to `TRACE_POINTS`, both ends kept."""
    if "trace" not in tensors:
        return (), ()
    return _over_iterations(tensors, "trace"), tuple(int(at) for at in _over_iterations(tensors, "trace_at"))


def courses(tensors: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Return by name the numbers that a trial recovered beside the images, at the iterations of its `trace`."""
    return {name.removeprefix(COURSE): _over_iterations(tensors, name) for name in tensors if name.startswith(COURSE)}


def _over_iterations(tensors: Mapping[str, Tensor], name: str) -> tuple[float, ...]:
    """Return a tensor that is stored along the iterations, as far as the trial ran, thinned."""
    if "trace_at" not in tensors:
        return ()
    values = zip(tensors[name].tolist(), tensors["trace_at"].tolist(), strict=True)
    return tuple(thin([float(value) for value, at in values if at >= 0], TRACE_POINTS))


def unit(picture: Tensor) -> Tensor:
    """Return a stored picture in [0, 1]: bytes are divided by 255, others taken as they are."""
    return picture.float() if picture.is_floating_point() else picture.float() / 255


def timeline(films_at: Sequence[Sequence[int]], *, positions: int = POSITIONS) -> list[int]:
    """Return the iterations at which the slider stops: all that any film shows, thinned evenly to `positions`.

    First and last are kept, so that the slider's ends are every film's start and every film's result.

    >>> timeline([(0, 5, 20), (0, 5, 40)])
    [0, 5, 20, 40]
    >>> timeline([range(101)], positions=5)
    [0, 25, 50, 75, 100]
    """
    return thin(sorted({at for film_at in films_at for at in film_at}), positions)


def thin(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


@dataclass(frozen=True, slots=True)
class Detail:
    """How pictures are drawn: sides of at most `side`, at most `frames` to a film, those on the way coarsened."""

    side: int = 256
    frames: int = 18
    coarse: float = 0.0


# From all that was stored to the fewest bytes. Size is given up last.
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

    def drawn(self, detail: Detail) -> list[int]:
        """Return the frames of the film that are drawn."""
        return thin(range(len(self.film)), detail.frames)

    def encode(self, detail: Detail) -> bytes:
        """Return the sprite."""
        last = len(self.film) - 1
        frames = [(shrink(self.film[i], detail.side), i == last) for i in self.drawn(detail)]
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
        count = len(self.stills) + len(self.drawn(detail))
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
