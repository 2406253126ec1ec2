"""Re-identification: does the reconstruction of a private example point to it more than the reconstructions of others do?

A success rate alone cannot tell: a smooth guess is near to many images. Here the null is what the same attack makes of other
clients' updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate, estimate_mean, estimate_rate

FPR = 0.01


@dataclass(frozen=True, slots=True)
class Reidentification:
    """Rates over the examples of T trials at a false positive rate of at most `fpr`.

    `rank`: mean share of the other clients' reconstructions that are as near to an example as its own; 0.5 by chance. `tpr`: share
    of examples whose rank is within `fpr`. `null`: the same share with the reconstruction of another client in place of the own
    one, measured. `others`: the fewest reconstructions that an example was compared with; fewer than 1 / fpr allow none nearer.
    """

    rank: Estimate
    tpr: Estimate
    null: Estimate
    fpr: float
    others: int


def reidentification(truth: Tensor, guess: Tensor, scored: Tensor, *, fpr: float = FPR) -> Reidentification:
    """Return how well paired guesses (T x N x ..., see `arrange`) point to their examples, against those of other trials.

    `scored` (T x N) is False for padding. Nearness is the MSE: an example x_i with guess g_i is re-identified if at most
    `floor(fpr M)` of the M guesses g_j of other trials have `mse(x_i, g_j) <= mse(x_i, g_i)`.
    """
    if not 0 < fpr < 1:
        raise InputError(f"fpr must be in (0, 1), got {fpr}")
    if truth.shape != guess.shape or scored.shape != truth.shape[:2] or len(truth) < 2:
        shapes = ", ".join(str(tuple(value.shape)) for value in (truth, guess, scored))
        raise InputError(
            f"reidentification needs truth and guess T x N x ... and scored T x N of at least 2 trials, got {shapes}"
        )
    T, N = scored.shape
    apart = torch.cdist(truth.flatten(2).flatten(0, 1).double(), guess.flatten(2).flatten(0, 1).double())
    owner = torch.arange(T, device=truth.device).repeat_interleave(N)
    other = (owner[:, None] != owner[None]) & scored.flatten()[None]
    compared = other.sum(1)

    def ranked(column: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return rank and success of each example for the guess in its column, among its candidates."""
        near = ((apart <= apart.gather(1, column[:, None])) & candidates).sum(1)
        number = candidates.sum(1)
        return (near / number.clamp_min(1)).reshape(T, N), (near <= (fpr * number).floor()).reshape(T, N)

    places = torch.arange(T * N, device=truth.device)
    rank, hit = ranked(places, other)
    foreign = (places + N) % (T * N)
    null_candidates = other.scatter(1, foreign[:, None], False)
    _, null_hit = ranked(foreign, null_candidates)
    null_counted = scored & scored.flatten()[foreign].reshape(T, N)
    return Reidentification(
        rank=estimate_mean(rank, scored, within=(0.0, 1.0)),
        tpr=estimate_rate(hit, scored),
        null=estimate_rate(null_hit, null_counted),
        fpr=fpr,
        others=int(compared[scored.flatten()].min()),
    )
