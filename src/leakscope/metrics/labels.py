"""Accuracy of recovered labels: sample by sample, or as a multiset."""

from __future__ import annotations

import torch
from torch import Tensor


def label_correct(truth: Tensor, guess: Tensor, pairing: Tensor) -> Tensor:
    """Return for each true sample whether its paired guess has its label; all arguments `... x N`.

    The pairing is by content. If the content failed, pairing and result are arbitrary: see also `label_overlap`.

    >>> label_correct(torch.tensor([3, 7]), torch.tensor([7, 3]), torch.tensor([1, 0]))
    tensor([True, True])
    """
    return guess.gather(-1, pairing) == truth


def label_overlap(truth: Tensor, guess: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the share of the true labels, as a multiset, that are among the guessed labels; independent of order.

    `sum_c min(n_c, n*_c) / N` over classes c for labels `... x N`; `mask` is False for padding; a missing guess is -1.

    >>> label_overlap(torch.tensor([1, 1, 2, 5]), torch.tensor([2, 1, 1, 1]))
    tensor(0.7500)
    """
    real = torch.ones_like(truth, dtype=torch.bool) if mask is None else mask
    place = torch.arange(truth.shape[-1], device=truth.device)
    earlier = (truth[..., :, None] == truth[..., None, :]) & real[..., None, :] & (place[None] < place[:, None])
    offered = (truth[..., :, None] == guess[..., None, :]) & real[..., None, :]
    matched = (earlier.sum(-1) < offered.sum(-1)) & real
    return matched.sum(-1) / real.sum(-1)
