"""The interface of a defence on the data."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class DataDefence(Protocol):
    """Changes the private images of one trial before the network sees them."""

    def protect_data(self, pictures: Tensor, key: Tensor) -> Tensor:
        """Return the images as the network sees them; all randomness comes from the key."""

    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Return what an informed attacker knows: the policies, each as (operation, magnitude) pairs."""
