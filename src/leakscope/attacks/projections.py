"""Where an unknown is allowed to be: applied to all trials after every step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakscope.core.types import Knowledge


def into_box(value: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the guess pushed into the valid box of the network's input."""
    return knowledge.scaling.clamp(value, len(knowledge.input_shape))


@dataclass(frozen=True, slots=True)
class Interval:
    """Clamp an unknown to [low, high] (SME's alpha to [0, 1]; a shift to its bounds)."""

    low: float
    high: float

    def __call__(self, value: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the clamped value."""
        del knowledge
        return value.clamp(self.low, self.high)
