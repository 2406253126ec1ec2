"""Reels: the pictures that one spot of the page can show, encoded as sprites within a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.report.picture import Pixels, coarsen, data_uri, pixels, sprite

if TYPE_CHECKING:
    from torch import Tensor

BUDGET = 1_200_000
STRENGTHS = (0.0, 0.25, 0.5, 1.0, 1.5)
TRIED = 12
CELL, NARROW_CELL, LARGEST_CELL = 96, 56, 128


@dataclass(frozen=True, slots=True, eq=False)
class Reel:
    """Pictures of one size; those whose place is in `rough` may be drawn with fewer values, the others stay exact."""

    pictures: tuple[Pixels, ...]
    rough: range = range(0)

    def encode(self, strength: float) -> bytes:
        """Return the sprite, its rough pictures coarsened by `strength`."""
        return sprite([coarsen(image, strength) if i in self.rough else image for i, image in enumerate(self.pictures)])

    def rule(self, name: str, strength: float) -> str:
        """Return the CSS rule that makes class `name` show this reel, encoded at `strength`."""
        rows, columns = self.pictures[0].shape[:2]
        wide, narrow = zoom(columns, CELL), NARROW_CELL / columns
        return (
            f".{name}{{--rows:{rows};--columns:{columns};--count:{len(self.pictures)};--wide:{wide:g};--narrow:{narrow:g};"
            f"background-image:url({data_uri(self.encode(strength))})}}"
        )


def zoom(columns: int, cell: int) -> float:
    """Return how much to enlarge a picture: a whole number that fills a cell, or less than 1 for one that is too large.

    >>> zoom(28, 96), zoom(32, 96), zoom(100, 96), zoom(256, 96)
    (3, 3, 1, 0.5)
    """
    return max(1, cell // columns) if columns <= LARGEST_CELL else LARGEST_CELL / columns


def film_reel(truth: Tensor, frames: Tensor) -> Reel:
    """Return truth, then the frames; those before the result may be coarsened."""
    return Reel((pixels(truth), *(pixels(frame) for frame in frames)), rough=range(1, len(frames)))


def still_reel(truth: Tensor, pictures: Sequence[Tensor]) -> Reel:
    """Return truth, then results made of it, all exact."""
    return Reel((pixels(truth), *(pixels(picture) for picture in pictures)))


def choose_strength(reels: Sequence[Reel], *, budget: int = BUDGET) -> float:
    """Return the least strength at which the sprites of all reels take about `budget` bytes, judged by a dozen of them.

    If none does, the greatest: a page that is too large is better than none.
    """
    every = max(1, len(reels) // TRIED)
    tried = reels[::every]
    for strength in STRENGTHS:
        if sum(len(reel.encode(strength)) for reel in tried) * len(reels) <= budget * len(tried):
            break
    return strength
