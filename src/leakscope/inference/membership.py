"""The membership attack of the SPN paper: which classes the private samples belong to.

Fan et al. 2020, arXiv:2006.11601, section 2 and algorithm 5: labels come from the reconstruction (optimised with it or read from
the update) or from a classifier on it. The distance is the averaged categorical distance `dist_m(y*, y)`: the share of samples
whose recovered label is wrong, after pairing. The paper's tables read as if nothing was paired: `unpaired` is the distance of
the same labels in random order, `1 - sum over classes of n_c n*_c / N^2`; for right labels of N samples, (1 - 1/N)(1 - 1/C) on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, lift
from leakscope.metrics import Estimate, clean, estimate_rate, score

NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class Membership:
    """The distance over all trials with its interval, per trial (paired and in random order), and for random guessing."""

    distance: Estimate
    each: Tensor
    unpaired: Tensor  # per trial, the labels in random order
    chance: float

    __repr__ = short_repr


def membership(
    truth_inputs: Tensor,
    truth_labels: Tensor,
    guess_inputs: Tensor,
    guess_labels: Tensor,
    *,
    classes: int,
    mask: Tensor | None = None,
) -> Membership:
    """Return how far recovered labels are from the true ones: T x N x ... inputs in [0, 1], T x N labels.

    Labels are 0 .. classes - 1 where `mask` is set; a missing guess is -1 and counts as wrong. Reconstructions are paired with
    samples by content before labels are compared. If the content failed, the pairing within a trial is random.
    """
    if classes < 2:
        raise InputError(f"classes must be at least 2, got {classes}")
    scores = score(truth_inputs, truth_labels, guess_inputs, guess_labels, mask=mask)
    if scores.label_correct is None:
        raise RuntimeError("labels were given, so they are scored")
    _check_labels("truth_labels", truth_labels[scores.scored], 0, classes)
    _check_labels("guess_labels", guess_labels[scores.scored], NO_LABEL, classes)
    wrong = ~scores.label_correct & scores.scored
    each = wrong.double().sum(1) / scores.scored.sum(1)
    unpaired = _in_random_order(truth_labels, guess_labels, scores.scored)
    return Membership(estimate_rate(wrong, scores.scored), each, unpaired, 1 - 1 / classes)


def _in_random_order(truth: Tensor, guess: Tensor, scored: Tensor) -> Tensor:
    """Return the expected share of wrong labels when the guesses of a trial are assigned to its samples at random."""
    both = scored[:, :, None] & scored[:, None, :]
    equal = (truth[:, :, None] == guess[:, None, :]) & both
    return 1 - equal.double().sum((1, 2)) / both.sum((1, 2))


def _check_labels(name: str, labels: Tensor, least: int, classes: int) -> None:
    outside = labels[(labels < least) | (labels >= classes)]
    if len(outside):
        none = f" (or {least} for none)" if least < 0 else ""
        raise InputError(f"{name} must be in 0 .. {classes - 1}{none} for {classes} classes, got {outside[0].item()}")


def classified(model: Model, weights: Tree, inputs: Tensor, scaling: Scaling | None = None) -> Tensor:
    """Return the classes that each trial's network (weights with leading T) gives its reconstructions, T x N x ... in [0, 1]: T x N."""
    scaled = (scaling or Scaling()).scale(clean(inputs), len(model.input_shape))
    buffers = {name: value.expand(len(inputs), *value.shape) for name, value in model.buffers.items()}
    keys = random.key([0] * len(inputs), device=inputs.device)

    def one(weights: Tree, buffers: Tree, x: Tensor, key: Tensor) -> Tensor:
        return model.apply(weights, buffers, x.to(next(iter(weights.values())).dtype), key)[0].argmax(-1)

    with torch.no_grad():
        return lift(one)(weights, buffers, scaled, keys)
