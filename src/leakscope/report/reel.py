"""Reels: the pictures that one spot of the page can show, encoded as sprites within a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leakscope.report.picture import EXACT, Pixels, coarsen, data_uri, pixels, sprite

if TYPE_CHECKING:
    from torch import Tensor

BUDGET = 1_500_000
LADDER = (EXACT, 64, 32, 16, 8)
REACHED = 2
CELL, NARROW_CELL, LARGEST_CELL = 96, 56, 128


@dataclass(frozen=True, slots=True, eq=False)
class Reel:
    """Pictures of one size: `kept` are always exact, those `between` the first and the last kept may be coarsened."""

    first: Pixels
    between: tuple[Pixels, ...]
    last: Pixels | None

    @property
    def count(self) -> int:
        """Return the number of pictures."""
        return 1 + len(self.between) + (self.last is not None)

    def encode(self, levels: int) -> bytes:
        """Return the sprite with `levels` values a channel between first and last.

        A picture that has all but reached the last one stays as exact as that, so that it does not seem to change.
        """
        images = [self.first]
        for image in self.between:
            images.append(image if self._reached(image) else coarsen(image, levels))
        return sprite(images if self.last is None else [*images, self.last])

    def _reached(self, image: Pixels) -> bool:
        if self.last is None:
            return False
        return int(np.abs(image.astype(np.int16) - self.last).max()) <= REACHED

    def rule(self, name: str, data: bytes) -> str:
        """Return the CSS rule that makes class `name` show this reel."""
        rows, columns = self.first.shape[:2]
        wide, narrow = zoom(columns, CELL), NARROW_CELL / columns
        return (
            f".{name}{{--rows:{rows};--columns:{columns};--count:{self.count};--wide:{wide:g};--narrow:{narrow:g};"
            f"background-image:url({data_uri(data)})}}"
        )


def zoom(columns: int, cell: int) -> float:
    """Return how much to enlarge a picture: a whole number that fills a cell, or less than 1 for one that is too large.

    >>> zoom(28, 96), zoom(32, 96), zoom(100, 96), zoom(256, 96)
    (3, 3, 1, 0.5)
    """
    return max(1, cell // columns) if columns <= LARGEST_CELL else LARGEST_CELL / columns


def film_reel(truth: Tensor, frames: Tensor) -> Reel:
    """Return truth, then the frames, the last of which (the result) stays exact."""
    images = [pixels(frame) for frame in frames]
    return Reel(pixels(truth), tuple(images[:-1]), images[-1])


def noise_reel(truth: Tensor, pictures: Sequence[Tensor]) -> Reel:
    """Return truth, then what was made of it at each noise level."""
    return Reel(pixels(truth), tuple(pixels(picture) for picture in pictures), None)


def pair_reel(truth: Tensor, recovered: Tensor) -> Reel:
    """Return truth and recovered picture, both exact."""
    return Reel(pixels(truth), (), pixels(recovered))


def encode_all(reels: Sequence[Reel], *, budget: int = BUDGET) -> tuple[list[bytes], int]:
    """Return all sprites and the values a channel of what lies between: the most that fit into `budget` bytes.

    The coarsest is taken even if it does not fit: a page that is too large is better than none.
    """
    for levels in LADDER:
        encoded = [reel.encode(levels) for reel in reels]
        if sum(map(len, encoded)) <= budget:
            break
    return encoded, levels
