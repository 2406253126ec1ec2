"""Labels read off an update against labels guessed: what guessing is worth, and how sure a share is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from leakscope.metrics.interval import estimate_mean, wilson

if TYPE_CHECKING:
    from torch import Tensor


def expected_overlap(labels: Tensor, mask: Tensor, classes: int) -> float:
    """Return the mean overlap with T x N true labels that uniform guessing has on average.

    With n_c examples of class c among the N of a client and B ~ Binomial(N, 1/C) guesses of it,

        E sum_c min(n_c, B) / N = 1/N sum_c sum_{k=1}^{n_c} P(B >= k).

    >>> round(expected_overlap(torch.tensor([[3]]), torch.tensor([[True]]), 10), 6)
    0.1
    """
    from scipy.stats import binom

    shares = []
    for own, real in zip(labels, mask, strict=True):
        number = int(real.sum())
        counts = torch.bincount(own[real], minlength=classes).tolist()
        at_least = [float(binom.sf(k, number, 1 / classes)) for k in range(max(counts))]  # P(B >= 1), P(B >= 2), ...
        shares.append(sum(sum(at_least[:count]) for count in counts) / max(number, 1))
    return sum(shares) / len(shares)


def overlap_interval(overlaps: Tensor, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a mean overlap, seen with T clients of so many labels each.

    It covers Wilson's interval over all labels, which a share of 0 or 1 has too, and the t interval over clients, whose labels
    share an update.
    """
    low, high = wilson(float(overlaps.double().mean()), len(overlaps) * samples)
    if len(overlaps) == 1 or samples == 1:
        return low, high
    counted = torch.ones_like(overlaps[:, None], dtype=torch.bool)
    between = estimate_mean(overlaps[:, None], counted, within=(0.0, 1.0))
    return (low, high) if math.isnan(between.low) else (min(low, between.low), max(high, between.high))
