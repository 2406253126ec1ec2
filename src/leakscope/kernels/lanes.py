"""The number of lanes for a number of trials, such that on a CPU the bits of a trial do not depend on its neighbours.

Kernels process a tensor 16 or 32 numbers at a time and the remainder with other instructions, which round exp and tanh
differently. So every batch ends in enough copies of its first lane that the remainder never falls into a real lane.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.model import Model
from leakscope.core.types import Knowledge

NARROWEST = 4
VECTOR = 32


def spare_lanes(model: Model, knowledge: Knowledge, device: torch.device) -> int:
    """Return how many copies must follow the real lanes: enough for the remainder in the narrowest rounded layer."""
    if device.type != "cpu":
        return 0
    narrowest = min(knowledge.classes, model.narrowest or knowledge.classes)
    return spare_beside(knowledge.samples * max(narrowest, 1))


def spare_beside(numbers: int) -> int:
    """Return how many copies must follow the real lanes of a tensor with so many numbers a lane."""
    return -(-(VECTOR - 1) // numbers)


def lanes(live: int, spare: int) -> int:
    """Return the lanes for so many live trials: a multiple of four, spare copies included."""
    return max(NARROWEST, -(-(live + spare) // NARROWEST) * NARROWEST)


def padded(index: Tensor, width: int) -> Tensor:
    """Return `index` extended to `width` with copies of its first entry."""
    more = width - len(index)
    return torch.cat([index, index[:1].expand(more)]) if more > 0 else index
