"""Noise on every coordinate of the update. No clipping: put `Clip` before it for differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.defences.strengths import Unit, tried


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Add N(0, sigma^2) to every coordinate of the update (no clipping; `sigma` is the standard deviation).

    Equation: `g + sigma z`, z in N(0, I).
    Reference: Used as a defence by Zhu et al. 2019, arXiv:1906.08935.
    Works when: sigma is at least about the size of a coordinate of the update. More rounds of the same data average
        it away.
    Costs: accuracy, more with a larger sigma; no time and no bytes.
    """

    sigma: float | Tensor = field(default=0.0, metadata=tried(1.0, 10.0, unit=Unit.COORDINATE))

    def __post_init__(self) -> None:
        check_strength("GaussianNoise.sigma", self.sigma)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update plus noise."""
        own = random.fold(key, "gaussian_noise")
        return {
            name: value + (self.sigma * random.normal(random.fold(own, name), value.shape, value.dtype)).to(value.dtype)
            for name, value in update.items()
        }


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Add Laplace noise of standard deviation `sigma` to every coordinate; `scale` is sigma / sqrt(2), give either.

    By inversion: with u uniform in (-1/2, 1/2), x = -b sign(u) log(1 - 2|u|) has density exp(-|x| / b) / 2b.

    Equation: `g + x`, with x of density `exp(-|x| / b) / 2b` and `b = sigma / sqrt 2`.
    Reference: Used as a defence by Zhu et al. 2019, arXiv:1906.08935.
    Works when: as Gaussian noise of the same deviation.
    Costs: as Gaussian noise of the same deviation.
    """

    sigma: float | Tensor = field(default=0.0, metadata=tried(1.0, 10.0, unit=Unit.COORDINATE))
    scale: float | Tensor | None = None

    def __post_init__(self) -> None:
        check_strength("LaplaceNoise.sigma", self.sigma)
        if self.scale is not None:
            check_strength("LaplaceNoise.scale", self.scale)
            if bool((torch.as_tensor(self.sigma) != 0).any()):
                raise InputError("LaplaceNoise takes sigma (standard deviation) or scale (sigma / sqrt 2), not both")

    @property
    def deviation(self) -> float | Tensor:
        """Return the standard deviation, however it was given."""
        return self.sigma if self.scale is None else self.scale * math.sqrt(2)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update plus noise."""
        own = random.fold(key, "laplace_noise")
        scale = self.deviation / math.sqrt(2)
        made = {}
        for name, value in update.items():
            u = random.uniform(random.fold(own, name), value.shape, torch.float64) - 0.5 + 2.0**-25
            drawn = -torch.sign(u) * torch.log1p(-2 * u.abs())
            made[name] = value + (scale * drawn).to(value.dtype)
        return made


def check_strength(setting: str, strength: float | Tensor) -> None:
    """Refuse a strength that is negative, NaN or infinite."""
    value = torch.as_tensor(strength)
    if not bool(((value >= 0) & value.isfinite()).all()):
        raise InputError(f"{setting} must be in [0, inf), got {strength}")
