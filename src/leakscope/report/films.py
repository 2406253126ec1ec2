"""Films of an attack: frames of one image, the shared timeline of the slider, and reels encoded within a byte budget."""

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
    """Return the frames (S x ...) of one sample of a trial and their iterations: start (0), snapshots, result (`last`)."""
    import torch

    frames, at = [unit(tensors["inputs"][sample])], [last]  # `sample` is the reconstruction paired with the truth
    if "snapshots" in tensors and "snapshots_at" in tensors:
        steps = tensors["snapshots_at"]
        inner = [i for i, step in enumerate(steps.tolist()) if 0 < step < last]
        frames[:0] = [unit(tensors["snapshots"][i, sample]) for i in inner]
        at[:0] = [int(steps[i]) for i in inner]
    if "start" in tensors:
        frames, at = [unit(tensors["start"][sample]), *frames], [0, *at]
    return torch.stack(frames), tuple(at)


def trace(tensors: Mapping[str, Tensor]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return a trial's mismatch and its iterations, thinned evenly to `TRACE_POINTS`, both ends kept."""
    if "trace" not in tensors:
        return (), ()
    return _over_iterations(tensors, "trace"), tuple(int(at) for at in _over_iterations(tensors, "trace_at"))


def courses(tensors: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Return by name the values that a trial recovered beside the images, at the iterations of its `trace`."""
    return {name.removeprefix(COURSE): _over_iterations(tensors, name) for name in tensors if name.startswith(COURSE)}


def _over_iterations(tensors: Mapping[str, Tensor], name: str) -> tuple[float, ...]:
    """Return a tensor stored along the iterations, up to the last iteration of the trial, thinned."""
    if "trace_at" not in tensors:
        return ()
    values = zip(tensors[name].tolist(), tensors["trace_at"].tolist(), strict=True)
    return tuple(thin([float(value) for value, at in values if at >= 0], TRACE_POINTS))


def unit(picture: Tensor) -> Tensor:
    """Return a stored image in [0, 1]: bytes are divided by 255, floats unchanged."""
    return picture.float() if picture.is_floating_point() else picture.float() / 255


def timeline(films_at: Sequence[Sequence[int]], *, positions: int = POSITIONS) -> list[int]:
    """Return the iterations at which the slider stops: all that any film shows, thinned evenly, first and last kept.

    >>> timeline([(0, 5, 20), (0, 5, 40)])
    [0, 5, 20, 40]
    >>> timeline([range(101)], positions=5)
    [0, 25, 50, 75, 100]
    """
    return thin(sorted({at for film_at in films_at for at in film_at}), positions)


def thin(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spread, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


@dataclass(frozen=True, slots=True)
class Detail:
    """Drawing detail: images of at most `side`, at most `frames` per film, intermediate frames coarsened."""

    side: int = 256
    frames: int = 18
    coarse: float = 0.0


# From full detail to the fewest bytes. Size is reduced last.
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
    """Images of one size in one sprite: stills, then a film. Stills and the last frame are not coarsened."""

    stills: tuple[Pixels, ...]
    film: tuple[Pixels, ...] = ()

    def drawn(self, detail: Detail) -> list[int]:
        """Return the indices of the film frames that are drawn."""
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
        """Return the bytes of all images, uncompressed."""
        return sum(image.size for image in (*self.stills, *self.film))

    def rule(self, name: str, detail: Detail) -> str:
        """Return the CSS rule with which class `name` shows this reel."""
        rows, columns = shrink(self.stills[0], detail.side).shape[:2]
        count = len(self.stills) + len(self.drawn(detail))
        wide, narrow, large = zoom(columns, CELL), NARROW_CELL / columns, zoom(columns, LARGE_CELL)
        return (
            f".{name}{{--rows:{rows};--columns:{columns};--count:{count};--wide:{wide:g};--narrow:{narrow:g};"
            f"--large:{large:g};background-image:url({data_uri(self.encode(detail))})}}"
        )


def zoom(columns: int, cell: int) -> float:
    """Return the enlargement of an image: an integer that fills a cell, or less than 1 if it is too large.

    >>> zoom(28, 96), zoom(32, 96), zoom(100, 96), zoom(256, 96)
    (3, 3, 1, 0.5)
    """
    most = max(cell, LARGEST_CELL)
    return max(1, cell // columns) if columns <= most else most / columns


def film_reel(truth: Tensor, frames: Tensor) -> Reel:
    """Return the reel of the true image and a film."""
    return Reel((pixels(truth),), tuple(pixels(frame) for frame in frames))


def still_reel(pictures: Sequence[Tensor]) -> Reel:
    """Return the reel of stills."""
    return Reel(tuple(pixels(picture) for picture in pictures))


def choose_detail(kinds: Sequence[Sequence[Reel]], *, budget: int = BUDGET) -> Detail:
    """Return the first detail of `LADDER` at which all sprites take about `budget` bytes, judged by a dozen reels per kind."""
    tried = [(_some(reels), len(reels)) for reels in kinds if reels]
    for detail in LADDER:
        if sum(sum(len(reel.encode(detail)) for reel in some) * n / len(some) for some, n in tried) <= budget:
            break
    return detail  # the last one if none fits: a large page is better than none


def _some(reels: Sequence[Reel]) -> Sequence[Reel]:
    """Return a dozen reels, evenly spread; fewer, at least two, if they are large."""
    count = max(2, min(TRIED, TRIED_BYTES // max(1, reels[0].size)))
    return thin(reels, count)
