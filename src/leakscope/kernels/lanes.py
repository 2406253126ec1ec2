"""How many lanes are laid out for so many trials, so that a CPU run does not depend on a trial's neighbours, to the bit.

Kernels work through a tensor 16 or 32 numbers at a time and treat the rest (fewer than 32 at the end) with other instructions,
which round exp and tanh differently; so every batch ends in copies of its first lane, enough that the rest never falls into
a lane that counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.model import Model
from leakscope.core.types import Knowledge

NARROWEST = 4
VECTOR = 32


def spare_lanes(model: Model, knowledge: Knowledge, device: torch.device) -> int:
    """Return how many copies must follow the lanes that count: their narrowest rounded layer holds the rest."""
    if device.type != "cpu":
        return 0
    narrowest = min(knowledge.classes, model.narrowest or knowledge.classes)
    return -(-(VECTOR - 1) // (knowledge.samples * max(narrowest, 1)))


def lanes(live: int, spare: int) -> int:
    """Return the lanes laid out for so many live trials: a multiple of four with the spare copies behind them."""
    return max(NARROWEST, -(-(live + spare) // NARROWEST) * NARROWEST)


def padded(index: Tensor, width: int) -> Tensor:
    """Return `index` extended to `width` with copies of its first entry."""
    more = width - len(index)
    return torch.cat([index, index[:1].expand(more)]) if more > 0 else index
