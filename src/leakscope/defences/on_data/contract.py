"""What a defence on the data is: a function of ONE trial's pictures and a key, and what an attacker may be told of it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class DataDefence(Protocol):
    """Changes the private pictures of one trial before the network sees them."""

    def protect_data(self, pictures: Tensor, key: Tensor) -> Tensor:
        """Return the pictures as the network sees them; everything random comes from the key."""

    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Return the plain data that an attacker who knows is told: policies, each its operations with their sizes."""
