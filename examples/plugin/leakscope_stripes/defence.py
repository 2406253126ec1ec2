"""A defence on the update that attackers can be told of."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope import InputError, tree
from leakscope.defences import Revealed, nonzero, tried


@dataclass(frozen=True, slots=True)
class ThinOut:
    """Send every `every`-th coordinate of each tensor and 0 for the others."""

    every: int = field(default=2, metadata=tried(2, 10))  # the strengths at which an audit tries it as a remedy

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"ThinOut.every must be at least 1, got {self.every}")

    def protect_update(self, update: tree.Tree, key: Tensor) -> tree.Tree:
        """Return the thinned update of one client; nothing is drawn from the key."""
        del key
        return {name: value * self._kept(value) for name, value in update.items()}

    def reveal(self, sent: tree.Tree) -> Revealed:
        """Return which coordinates were sent: an attacker who knows the defence compares only these."""
        return Revealed(mask=nonzero(sent))

    def _kept(self, value: Tensor) -> Tensor:
        return (torch.arange(value.numel(), device=value.device) % self.every == 0).reshape(value.shape).to(value.dtype)
