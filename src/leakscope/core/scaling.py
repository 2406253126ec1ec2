"""Conversion between images in [0, 1] and network inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError

MANY = 16  # values: from here on a copy is faster than creating them one by one


@dataclass(frozen=True, slots=True)
class Scaling:
    """Per channel (or per feature) `(x - mean) / std`; values outside the network are always in [0, 1].

    >>> Scaling((0.5,), (0.25,)).box()
    (tensor([-2.]), tensor([2.]))
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise InputError(
                f"Scaling.mean and Scaling.std must have one entry per channel, got {self.mean} and {self.std}"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std))):
            raise InputError(f"Scaling.mean and Scaling.std must be finite, got {self.mean} and {self.std}")
        if not all(s > 0 for s in self.std):
            raise InputError(f"Scaling.std must be positive, got {self.std}")

    def _along(self, values: tuple[float, ...], x: Tensor, rank: int) -> Tensor:
        """Return `values` shaped to broadcast over the last `rank` dimensions of `x`, the first of which is the channel."""
        channels = x.shape[-rank]
        if len(values) not in (1, channels):
            raise InputError(f"Scaling has {len(values)} channels, the input has {channels}")
        if x.device.type == "cpu" and len(values) > MANY:
            return torch.tensor(values, dtype=x.dtype).reshape(-1, *[1] * (rank - 1))
        each = [torch.full((), value, dtype=x.dtype, device=x.device) for value in values]  # created on the device
        return torch.stack(each).reshape(-1, *[1] * (rank - 1))

    def scale(self, x: Tensor, rank: int) -> Tensor:
        """Return the network's input for images `x` in [0, 1]; one input has `rank` dimensions, channel first."""
        return (x - self._along(self.mean, x, rank)) / self._along(self.std, x, rank)

    def unscale(self, x: Tensor, rank: int) -> Tensor:
        """Return the image in [0, 1] for a network input; the inverse of `scale`."""
        return x * self._along(self.std, x, rank) + self._along(self.mean, x, rank)

    def clamp(self, x: Tensor, rank: int) -> Tensor:
        """Return a network input clamped to the valid box."""
        mean, std = self._along(self.mean, x, rank), self._along(self.std, x, rank)
        return torch.minimum(torch.maximum(x, -mean / std), (1 - mean) / std)

    def box(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest valid network input per channel."""
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return (0 - mean) / std, (1 - mean) / std
