"""The rule that 'auto' means for batches: of several rules the one whose counts explain the bias gradient.

A rule gives fractional counts; whole ones predict the gradient up to their difference. Its residual is the sum of these differences
over the smaller of N and C, about 1/4 for a wrong rule. If that of `counts` is small, its counts are taken; with few classes a
residual says little, and `counts` needs less of it. Else those of `calibrated` or `ilrg` are taken if the lesser residual is below
`SMALL`. Otherwise the network has learned too much for whole numbers, and the estimate depends on how labels were drawn. Drawn alike
from all classes, `calibrated` is the best linear estimate, once its mean prediction is `_moved`. Labels are uneven if there are fewer
than classes, if the bias gradient is then larger than labels drawn alike make it (`_size`), or if iLRG's classes explain the whole
gradient of the last layer (residual below `EXPLAINED`): then the mean of `ilrg` and of `calibrated` with its deviations stretched is
taken. No truth is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.label_rules.apportion import counts_at_least, labels_of_counts
from leakscope.attacks.label_rules.counts import calibrated_shares, least_counts, random_shares
from leakscope.attacks.label_rules.head import bias_gradient, cross_entropy_only, present_slots
from leakscope.attacks.label_rules.ilrg import ClassFit, fit_classes, prediction_at_mean
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.types import Knowledge, Observation

SMALL = 0.1
CHANCE = 0.01  # of a residual that looks sure although the rule is wrong
ILRG = 2  # its place among the rules
CUT = 0.1  # of the bias gradient: where iLRG cuts more of its shares, what is left of them is whole without evidence
EXPLAINED = 0.5  # 0.1 to 0.5 for clients of three classes, above 0.75 for labels of all
STRETCH = 4.0
UNEVEN = 2.0  # standard deviations of the gradient's size under labels drawn alike


@dataclass(frozen=True, slots=True)
class BatchLabels:
    """The labels of T batches (T x N), the residual of their counts (T) and whether it is too small for chance (T)."""

    labels: Tensor
    residual: Tensor
    sure: Tensor

    __repr__ = short_repr


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
    fit = fit_classes(model, observation, knowledge, pull)
    shares = torch.stack([random_shares(model, observation, knowledge, keys, pull), even, fit.share])
    counts = torch.stack([counts_at_least(share, least, total) for share in shares])
    residuals = (shares * total - counts).abs().sum(2) / total.clamp_max(classes)[:, 0]
    fresh = residuals[0] < max(SMALL, 0.25 / math.sqrt(_remainders(knowledge.samples, classes)))
    best = torch.where(fresh, 0, residuals.argmin(0))
    place = torch.arange(len(best), device=best.device)
    fitting, residual = counts[best, place], residuals[best, place]
    if knowledge.public is None:  # else the mean prediction is that on public examples
        even = _moved(even, prediction_at_mean(model, observation, knowledge, pull))
    estimate = counts_at_least(_estimate(even, fit, total), least, total)
    chosen = torch.where((fresh | (residual < SMALL))[:, None], fitting, estimate)
    sure = (residual < _sure_below(knowledge.samples, classes)) & ((best != ILRG) | (fit.cut < CUT))
    return BatchLabels(labels_of_counts(chosen, present), residual, sure)


def _moved(even: Tensor, prediction: Tensor) -> Tensor:
    """Return shares (T x C) with another mean prediction: between 1/C and that at the mean features, where they are most alike.

    A network that has learned little may prefer a few classes on all inputs. Its bias gradient is then along this preference; that of
    a calibrated network is not, and nothing moves.
    """
    preference = prediction - 1 / even.shape[1]
    length = preference.square().sum(1, keepdim=True).clamp_min(1e-12)
    along = -((even - 1 / even.shape[1]) * preference).sum(1, keepdim=True) / length
    return even + along.clamp(0, 1) * preference


def _estimate(even: Tensor, fit: ClassFit, total: Tensor) -> Tensor:
    """Return shares (T x C) for a network that has learned: `even` for labels drawn alike, else a mean with those of the fit."""
    classes, explained = even.shape[1], (fit.residual < EXPLAINED)[:, None]
    most = 1 + UNEVEN * math.sqrt(2 / max(classes - 1, 1))
    size, fitted = _size(even, total) / most, _size(fit.share, total) / most
    few = explained & ((fitted > 1) | (total < classes))
    wide = (1 / classes + torch.where(few, STRETCH, size.clamp_min(1)) * (even - 1 / classes)).clamp_min(0)
    mean = (wide / wide.sum(1, keepdim=True) + fit.share / fit.share.sum(1, keepdim=True).clamp_min(1e-12)) / 2
    return torch.where(explained | (size > 1) | (total < classes), mean, even)


def _size(share: Tensor, total: Tensor) -> Tensor:
    """Return N |share - 1/C|^2 / (1 - 1/C), T x 1: at most 1 on average if labels are drawn alike and predictions calibrated.

    Its standard deviation is then at most about sqrt(2 / (C - 1)).
    """
    classes = share.shape[1]
    return total * (share - 1 / classes).square().sum(1, keepdim=True) / (1 - 1 / classes)


def _remainders(samples: int, classes: int) -> int:
    """Return how many remainders of the counts are independent, at most."""
    return max(min(samples, classes - 1), 1)


def _sure_below(samples: int, classes: int) -> float:
    """Return the residual that a wrong rule falls below with probability `CHANCE`: its m remainders are uniform on [0, 1/2]."""
    m = _remainders(samples, classes)
    return min(SMALL, math.exp((math.log(CHANCE) + math.lgamma(m + 1)) / m) / (2 * m))
