"""Noise on every coordinate of the update. No clipping: put `Clip` before it for differential privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.tree import Tree
from leakscope.defences.on_update.contract import Effect, Revealed
from leakscope.defences.strengths import Unit, tried

UNDOES_ROUNDING = "noise undoes the rounding; put the noise first"
FILLS = "noise fills the coordinates that were left out; put the noise first"
MISPLACED = {Effect.SPARSE: FILLS, Effect.ROUNDED: UNDOES_ROUNDING}


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Add N(0, sigma^2) to every coordinate of the update (no clipping; `sigma` is the standard deviation).

    Equation: `g + sigma z`, z in N(0, I); with `each` `g_t + sigma rms(g_t) z_t` for every tensor t, so small gradients get
        little noise.
    Reference: Used as a defence by Zhu et al. 2019, arXiv:1906.08935.
    Works when: sigma is at least about the size of a coordinate of the update. Several rounds on the same data average it away.
    Costs: accuracy, more with a larger sigma; no time and no bytes.
    """

    sigma: float | Tensor = field(default=0.0, metadata=tried(1.0, 10.0, unit=Unit.COORDINATE))
    each: bool = False

    once: ClassVar[bool] = True
    not_after: ClassVar[Mapping[Effect, str]] = MISPLACED

    def __post_init__(self) -> None:
        check_fields(self)
        check_strength("GaussianNoise.sigma", self.sigma)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update plus noise."""
        return with_gaussian(update, self.sigma, key, each=self.each)

    def reveal(self, sent: Tree) -> Revealed:
        """Return the standard deviation."""
        del sent
        return Revealed(sigma=self.sigma, sigma_each=self.each)


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Add Laplace noise of standard deviation `sigma` to every coordinate; `scale` is sigma / sqrt(2), give either.

    Equation: `g + x`, with x of density `exp(-|x| / b) / 2b` and `b = sigma / sqrt 2`; `each` as for Gaussian noise.
    Reference: Used as a defence by Zhu et al. 2019, arXiv:1906.08935.
    Works when: as Gaussian noise of the same deviation.
    Costs: as Gaussian noise of the same deviation.
    """

    sigma: float | Tensor = field(default=0.0, metadata=tried(1.0, 10.0, unit=Unit.COORDINATE))
    scale: float | Tensor | None = None
    each: bool = False

    once: ClassVar[bool] = True
    not_after: ClassVar[Mapping[Effect, str]] = MISPLACED

    def __post_init__(self) -> None:
        check_fields(self)
        check_strength("LaplaceNoise.sigma", self.sigma)
        if self.scale is not None:
            check_strength("LaplaceNoise.scale", self.scale)
            if bool((torch.as_tensor(self.sigma) != 0).any()):
                raise InputError("LaplaceNoise takes sigma (standard deviation) or scale (sigma / sqrt 2), not both")

    @property
    def deviation(self) -> float | Tensor:
        """Return the standard deviation; in units of each tensor's root mean square with `each`."""
        return self.sigma if self.scale is None else self.scale * math.sqrt(2)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update plus noise."""
        scale = self.deviation / math.sqrt(2)
        shapes = {name: value.shape for name, value in update.items()}
        uniform = random.uniforms(random.fold(key, "laplace_noise"), shapes, torch.float64)
        noisy = {}
        for name, value in update.items():
            u = uniform[name] - 0.5 + 2.0**-25
            drawn = -torch.sign(u) * torch.log1p(-2 * u.abs())  # inverse of the cumulative distribution
            noisy[name] = value + (level_on(value, scale, each=self.each) * drawn).to(value.dtype)
        return noisy

    def reveal(self, sent: Tree) -> Revealed:
        """Return the standard deviation."""
        del sent
        return Revealed(sigma=self.deviation, sigma_each=self.each)


def with_gaussian(update: Tree, sigma: float | Tensor, key: Tensor, *, each: bool = False) -> Tree:
    """Return the update plus the noise that `GaussianNoise` draws from this key."""
    shapes = {name: value.shape for name, value in update.items()}
    drawn = random.normals(random.fold(key, "gaussian_noise"), shapes, torch.float64)
    return {
        name: value + (level_on(value, sigma, each=each) * drawn[name].to(value.dtype)).to(value.dtype)
        for name, value in update.items()
    }


def level_on(value: Tensor, strength: float | Tensor, *, each: bool) -> float | Tensor:
    """Return the standard deviation of the noise on one tensor; with `each`, `strength` times the tensor's root mean square."""
    return strength * value.square().mean().sqrt() if each else strength


def check_strength(setting: str, strength: float | Tensor) -> None:
    """Raise for a strength that is negative, NaN or infinite."""
    value = torch.as_tensor(strength)
    if not bool(((value >= 0) & value.isfinite()).all()):
        raise InputError(f"{setting} must be in [0, inf), got {strength}")
