"""The two rules of breaching that read the classes of negative gradient, written from their formulas.

Both are blind to the length of the update and need no prediction. Geiping et al., github.com/JonasGeiping/breaching.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.label_rules.apportion import labels_of_counts
from leakscope.attacks.label_rules.head import class_pull, cross_entropy_only, present_slots
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation


def analytic(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels: every class of negative gradient once, in class order as far as there is room, then uniform draws.

    Exact for batches in which no class repeats and predictions are small; further labels are drawn at random.
    """
    cross_entropy_only("analytic", knowledge)
    pull = class_pull(model, observation)
    present, classes = present_slots(knowledge, pull), pull.shape[1]
    total = present.sum(1, keepdim=True)
    counts = _once_each(pull, total)
    draws = (random.uniform(random.fold(key, "labels"), (present.shape[1],)).to(pull) * classes).long()
    used = torch.arange(present.shape[1], device=pull.device) < total - counts.sum(1, keepdim=True)
    counts.scatter_add_(1, draws.clamp_max(classes - 1), used.to(counts))
    return labels_of_counts(counts, present)


def bias_corrected(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels: every class of negative gradient once, then always the class of the least gradient.

    Each label raises the gradient of its class by the impact m, the sum of the negative gradients over -N.
    """
    del key
    cross_entropy_only("bias_corrected", knowledge)
    pull = class_pull(model, observation)
    present = present_slots(knowledge, pull)
    total = present.sum(1, keepdim=True)
    counts = _once_each(pull, total)
    impact = -pull.clamp_max(0).sum(1, keepdim=True) / total
    pull = pull + impact * (pull < 0)
    for _ in range(knowledge.samples):
        least = pull.argmin(1, keepdim=True)
        one = torch.zeros_like(pull).scatter_(1, least, 1.0) * (counts.sum(1, keepdim=True) < total)
        counts, pull = counts + one.to(counts), pull + impact * one
    return labels_of_counts(counts, present)


def _once_each(pull: Tensor, total: Tensor) -> Tensor:
    """Return 1 for every class of negative gradient, at most `total` of them in class order, T x C."""
    negative = pull < 0
    return (negative & (negative.cumsum(1) <= total)).to(torch.int64)
