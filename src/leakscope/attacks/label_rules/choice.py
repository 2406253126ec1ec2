"""The rule that 'auto' means for batches: of several rules the one whose counts explain the bias gradient.

A rule gives fractional counts; whole ones predict the gradient up to their difference. Its residual is the sum of these differences
over the smaller of N and C, about 1/4 for a wrong rule. If the least residual of `counts`, `calibrated` and `ilrg` is below
`SMALL`, that rule's counts are taken. Otherwise the network has learned too much for whole numbers, and the estimate depends on how
labels were drawn: if all classes may occur and the gradient is as small as for labels drawn alike (`_is_uneven`), `calibrated` is
the best linear estimate; else the mean of `ilrg` and of `calibrated` with its deviations stretched. No truth is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.label_rules.apportion import counts_at_least, labels_of_counts
from leakscope.attacks.label_rules.counts import calibrated_shares, least_counts, random_shares
from leakscope.attacks.label_rules.head import bias_gradient, cross_entropy_only, present_slots
from leakscope.attacks.label_rules.ilrg import ilrg_shares
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation

SMALL = 0.1
CHANCE = 0.01  # of a residual that looks sure although the rule is wrong
UNEVEN = 2.0  # standard deviations of the gradient's size under labels drawn alike


@dataclass(frozen=True, slots=True)
class BatchLabels:
    """The labels of T batches (T x N), the residual of their counts (T) and whether it is too small for chance (T)."""

    labels: Tensor
    residual: Tensor
    sure: Tensor


def by_residual(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels in class order by the rule whose counts explain the bias gradient best; what 'auto' means for batches."""
    return read_batch(model, observation, knowledge, key).labels


def read_batch(model: Model, observation: Observation, knowledge: Knowledge, keys: Tensor) -> BatchLabels:
    """Return the labels of `by_residual` and how sure they are."""
    cross_entropy_only("by_residual", knowledge)
    pull = bias_gradient(model, observation, knowledge, keys)
    present = present_slots(knowledge, pull)
    total, classes = present.sum(1, keepdim=True), pull.shape[1]
    least = least_counts(model, observation, knowledge, pull)
    even = calibrated_shares(model, observation, knowledge, keys, pull)
    features = ilrg_shares(model, observation, knowledge, pull)
    shares = torch.stack([random_shares(model, observation, knowledge, keys, pull), even, features])
    counts = torch.stack([counts_at_least(share, least, total) for share in shares])
    residuals = (shares * total - counts).abs().sum(2) / total.clamp_max(classes)[:, 0]
    residual, best = residuals.min(0)
    fitting = counts[best, torch.arange(len(best), device=best.device)]
    uneven = _is_uneven(even, total) | (total < classes)
    mean = (_stretched(even, total) + features / features.sum(1, keepdim=True).clamp_min(1e-12)) / 2
    estimate = counts_at_least(torch.where(uneven, mean, even), least, total)
    chosen = torch.where((residual < SMALL)[:, None], fitting, estimate)
    return BatchLabels(labels_of_counts(chosen, present), residual, residual < _sure_below(knowledge.samples, classes))


def _size(share: Tensor, total: Tensor) -> Tensor:
    """Return N |share - 1/C|^2 / (1 - 1/C), T x 1: at most 1 on average if labels are drawn alike and predictions calibrated."""
    classes = share.shape[1]
    return total * (share - 1 / classes).square().sum(1, keepdim=True) / (1 - 1 / classes)


def _most_even(classes: int) -> float:
    return 1 + UNEVEN * math.sqrt(2 / max(classes - 1, 1))


def _is_uneven(share: Tensor, total: Tensor) -> Tensor:
    """Return whether the labels of a client are too uneven to be drawn alike from all classes, T x 1."""
    return _size(share, total) > _most_even(share.shape[1])


def _stretched(share: Tensor, total: Tensor) -> Tensor:
    """Return shares whose deviations from 1/C grow with their size: a learned network hides most of an uneven mix."""
    factor = (_size(share, total) / _most_even(share.shape[1])).clamp_min(1)
    wide = (1 / share.shape[1] + factor * (share - 1 / share.shape[1])).clamp_min(0)
    return wide / wide.sum(1, keepdim=True).clamp_min(1e-12)


def _sure_below(samples: int, classes: int) -> float:
    """Return the residual that a wrong rule falls below with probability `CHANCE`: its m remainders are uniform on [0, 1/2]."""
    m = max(min(samples, classes - 1), 1)
    return min(SMALL, math.exp((math.log(CHANCE) + math.lgamma(m + 1)) / m) / (2 * m))
