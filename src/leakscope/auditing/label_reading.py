"""Labels read off an update against labels guessed: what a rule read, what guessing is worth, and how sure a share is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.labels import LABEL_RULES
from leakscope.auditing.suite import Untested, labels_problem
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.metrics.interval import estimate_mean, wilson
from leakscope.metrics.labels import label_overlap
from leakscope.play import Exposure


@dataclass(frozen=True, slots=True)
class LabelReading:
    """The share of labels that a rule read off the update, beside what guessing has on average; each a mean overlap."""

    rule: str
    share: float
    guessing: float
    n: int
    low: float | None = None  # of the 95 % interval of the share
    high: float | None = None


def read_labels(exposure: Exposure) -> LabelReading | Untested:
    """Return how many labels the update gives away before any search."""
    knowledge = exposure.informed or exposure.knowledge
    problem = labels_problem(exposure.model, knowledge, exposure.observation.shares)
    if problem is not None:
        return Untested("label recovery", problem)
    rule = "cpl" if knowledge.samples == 1 else "counts"
    keys = random.key(list(exposure.seeds))
    try:
        guess = LABEL_RULES[rule](exposure.model, exposure.observation, knowledge, keys)
    except (InputError, RuntimeError) as error:
        return Untested("label recovery", (str(error).strip() or type(error).__name__).splitlines()[0])
    truth, mask = exposure.batch.labels, exposure.batch.mask
    overlap, blind = label_overlap(truth, guess, mask), expected_overlap(truth, mask, knowledge.classes)
    low, high = overlap_interval(overlap, knowledge.samples)
    return LabelReading(rule, float(overlap.double().mean()), blind, int(mask.sum()), low, high)


def expected_overlap(labels: Tensor, mask: Tensor, classes: int) -> float:
    """Return the mean overlap with T x N true labels that uniform guessing has on average.

    With n_c examples of class c among the N of a client and B ~ Binomial(N, 1/C) guesses of it,

        E sum_c min(n_c, B) / N = 1/N sum_c sum_{k=1}^{n_c} P(B >= k).

    >>> round(expected_overlap(torch.tensor([[3]]), torch.tensor([[True]]), 10), 6)
    0.1
    """
    from scipy.stats import binom

    shares = []
    for client_labels, real in zip(labels, mask, strict=True):
        number = int(real.sum())
        counts = torch.bincount(client_labels[real], minlength=classes).tolist()
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
