"""Captures of one client over several rounds: the client counts once, with the best of its rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.types import Outcome, Reconstruction
from leakscope.play import Exposure


def first_rounds(exposure: Exposure, owners: Tensor) -> Exposure:
    """Return the exposure of the first capture of every client."""
    first = torch.tensor([int((owners == owner).nonzero()[0]) for owner in range(int(owners.max()) + 1)])
    return exposure.select(first)


def best_rounds(guess: Reconstruction, owners: Tensor) -> Tensor:
    """Return for every client the capture with most certified samples, then the least mismatch; the truth is not consulted."""
    worst = 1e30  # of a diverged attack, yet less than that of another client
    left = relative_mismatch(guess).nan_to_num(worst, worst).masked_fill(guess.outcome == Outcome.DIVERGED, worst)
    own = owners == torch.arange(int(owners.max()) + 1)[:, None]
    if guess.proved is not None:
        proved = torch.where(own, guess.proved.sum(1).to(own.device), -1)
        own &= proved == proved.max(1, keepdim=True).values
    return torch.where(own, left, torch.inf).argmin(1)


def relative_mismatch(guess: Reconstruction) -> Tensor:
    """Return the final over the first mismatch of every trial; attacks without iterations have a relative one."""
    one = guess.trace.shape[1] == 1
    return guess.mismatch if one else guess.mismatch / guess.trace[:, 0].clamp_min(1e-12)
