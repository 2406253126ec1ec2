"""Defences on the update of ONE trial; a tensor among the settings is a per-trial strength."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree


class UpdateDefence(Protocol):
    """Changes the update of one trial before it is shared."""

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the protected update; everything random comes from the key."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Add N(0, sigma^2) to every coordinate of the update (no clipping; `sigma` is the standard deviation)."""

    sigma: float | Tensor = 0.0

    def __post_init__(self) -> None:
        sigma = torch.as_tensor(self.sigma)
        if not bool(((sigma >= 0) & sigma.isfinite()).all()):
            raise InputError(f"GaussianNoise.sigma must be in [0, inf), got {self.sigma}")

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update plus noise."""
        own = random.fold(key, "gaussian_noise")
        return {
            name: value + self.sigma * random.normal(random.fold(own, name), value.shape, value.dtype)
            for name, value in update.items()
        }
