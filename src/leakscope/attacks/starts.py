"""Initial guesses: functions of ONE trial, `(key, knowledge) -> N x input_shape`, in network space.

Image-like starts (uniform, patterned, solid, insider) are drawn in [0, 1] and scaled; normal is N(0, 1) in network space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.core.types import Knowledge


@dataclass(frozen=True, slots=True)
class Normal:
    """Standard normal noise in network space (DLG, IG, SME)."""

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return N(0, 1) for every number of the guess."""
        return random.normal(key, (knowledge.samples, *knowledge.input_shape))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform noise over the valid box."""

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return U[0, 1) images, scaled."""
        return _scaled(random.uniform(key, (knowledge.samples, *knowledge.input_shape)), knowledge)


@dataclass(frozen=True, slots=True)
class Patterned:
    """A uniform tile repeated `tiles` times along each side (CPL; 2 = tile of half the side, 4 = a quarter).

    The last tiles are cut if the side is not a multiple. Tables repeat the tile along their one dimension.
    """

    tiles: int = 2

    def __post_init__(self) -> None:
        if self.tiles < 1:
            raise InputError(f"Patterned.tiles must be at least 1, got {self.tiles}")

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the repeated tile, a different one for each sample."""
        shape = knowledge.input_shape
        channels, sides = (shape[:1], shape[1:]) if len(shape) > 1 else ((), shape)
        small = [-(-side // self.tiles) for side in sides]
        tile = random.uniform(key, (knowledge.samples, *channels, *small))
        whole = tile.repeat(*[1] * (1 + len(channels)), *[self.tiles] * len(sides))
        for number, side in enumerate(reversed(sides)):
            whole = whole.narrow(whole.ndim - 1 - number, 0, side)
        return _scaled(whole, knowledge)


@dataclass(frozen=True, slots=True)
class Solid:
    """One colour everywhere: dark 0, light 1, or one channel at 1 and the others at 0 (Wei's geometric starts)."""

    level: float = 0.0
    channel: int | None = None

    def __post_init__(self) -> None:
        if self.channel is not None and (self.level or self.channel < 0):
            raise InputError(
                f"Solid.channel must not be negative and takes no level, got {self.channel} and {self.level}"
            )
        if not 0 <= self.level <= 1:
            raise InputError(f"Solid.level must be in [0, 1], got {self.level}")

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the solid images."""
        del key
        picture = torch.full((knowledge.samples, *knowledge.input_shape), self.level)
        if self.channel is not None:
            if len(knowledge.input_shape) < 2 or self.channel >= knowledge.input_shape[0]:
                raise InputError(
                    f"a start in channel {self.channel} needs a colour picture, got {knowledge.input_shape}"
                )
            picture = torch.zeros_like(picture)
            picture[:, self.channel] = 1.0
        return _scaled(picture, knowledge)


@dataclass(frozen=True, slots=True)
class Insider:
    """Given images `pictures`, T x N x input_shape in [0, 1], for an attacker who has an example of the class (CPL-optimal)."""

    pictures: Tensor
    __repr__ = short_repr

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the given images, scaled."""
        del key
        want = (knowledge.samples, *knowledge.input_shape)
        if tuple(self.pictures.shape) != want:
            raise InputError(f"Insider.pictures must be {want} for each trial, got {tuple(self.pictures.shape)}")
        return _scaled(self.pictures, knowledge)


def _scaled(picture: Tensor, knowledge: Knowledge) -> Tensor:
    return knowledge.scaling.scale(picture, len(knowledge.input_shape))


Start = Callable[[Tensor, Knowledge], Tensor]

STARTS: dict[str, Callable[[], Start]] = {
    "normal": Normal,
    "uniform": Uniform,
    "patterned": Patterned,
    "patterned4": lambda: Patterned(4),
    "dark": lambda: Solid(0.0),
    "light": lambda: Solid(1.0),
    "red": lambda: Solid(channel=0),
    "green": lambda: Solid(channel=1),
    "blue": lambda: Solid(channel=2),
}
