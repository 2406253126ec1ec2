"""The bag of words of a client: the rows of a trained embedding that its tokens moved.

The gradient of an embedding E by its own lookup is 0 in every row whose token is not in the batch. SGD, with momentum or without, and
Adam leave such a row untouched; decoupled weight decay, and any decay under SGD, multiply all of them by one common factor. So the
rows that moved otherwise are the tokens, for any batch and any number of steps (the first step of FILM, Gupta et al. 2022,
arXiv:2205.08514). Rows say which tokens occur, never how often nor in which order. The last token of a causal language model's
sequence has no gradient, and neither has a `padding_idx`.

A head tied to the embedding gives every row a gradient, `sum_j (p_jv - y_jv) h_j`. Tokens of the batch are then the rows with
outlying norms, by a robust z-score of the log-norm: a likely set and no proof. The same holds for Adam's own `weight_decay`, which is
a part of the gradient and moves all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr

ROUNDING = 256  # times eps of a row's norm: rounding of many steps that only decay a row
DEVIATION = 1.4826  # of a normal, in median absolute deviations


@dataclass(frozen=True, slots=True)
class Bag:
    """Tokens of a batch, ascending; their counts are not known.

    `exact` is True if the set is that of the rows that moved by themselves, False if it was chosen by a norm threshold. `factor` is the
    common factor of all other rows: 1, or less under weight decay.
    """

    tokens: Tensor
    exact: bool
    factor: float = 1.0

    __repr__ = short_repr


def bag_of_gradient(gradient: Tensor, *, tied: bool = False) -> Bag:
    """Return the tokens whose rows of the embedding's gradient (V x d) are not 0.

    >>> bag_of_gradient(torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 2.0]])).tokens
    tensor([1, 2])
    """
    _check(gradient)
    if tied:
        return Bag(_outlying(gradient.double().norm(dim=1)), exact=False)
    return Bag((gradient != 0).any(1).nonzero()[:, 0], exact=True)


def bag_of_weights(before: Tensor, after: Tensor, *, tied: bool = False) -> Bag:
    """Return the tokens whose rows of the embedding (V x d) moved otherwise than all others in local training.

    A row that only decays stays on its line, so the common factor is the median of `<after, before> / <before, before>` over such rows.
    A row of zeros does not decay, so any movement counts. Where every row moved off its line, the set is chosen by norms.
    """
    _check(after)
    if before.shape != after.shape:
        raise InputError(
            f"an embedding has one shape before and after, got {tuple(before.shape)} and {tuple(after.shape)}"
        )
    eps = torch.finfo(after.dtype).eps
    old, new = before.double(), after.double()
    limit = ROUNDING * eps * old.norm(dim=1)
    ratio = (new * old).sum(1) / old.square().sum(1).clamp_min(torch.finfo(torch.float64).tiny)
    straight = ((new - ratio[:, None] * old).norm(dim=1) <= limit) & (old != 0).any(1)
    if tied or not bool(straight.any()):  # something else than the lookup moved every row
        return Bag(_outlying((new - old).norm(dim=1)), exact=False)
    changed = (before != after).any(1)
    if not bool(changed[straight].long().median()):  # no decay: an untouched row has the same bits
        return Bag(changed.nonzero()[:, 0], exact=True)
    factor = float(ratio[straight].median())
    moved = (new - factor * old).norm(dim=1) > limit
    return Bag(moved.nonzero()[:, 0], exact=True, factor=factor)


def _outlying(norms: Tensor) -> Tensor:
    """Return the rows whose log-norm lies above all that V normal values would reach: a z-score over sqrt(2 ln V) + 1."""
    logs = norms.clamp_min(torch.finfo(torch.float64).tiny).log()
    centre = logs.median()
    spread = DEVIATION * (logs - centre).abs().median()
    return (logs > centre + (math.sqrt(2 * math.log(max(len(logs), 2))) + 1) * spread).nonzero()[:, 0]


def _check(rows: Tensor) -> None:
    if rows.ndim != 2 or not rows.is_floating_point():
        raise InputError(f"an embedding's update is a V x d matrix of floats, got {tuple(rows.shape)} of {rows.dtype}")
    if not bool(rows.isfinite().all()):
        raise InputError("the embedding's update holds NaN or infinity")
