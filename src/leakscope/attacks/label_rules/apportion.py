"""Whole counts from fractions, and labels from whole counts."""

from __future__ import annotations

import torch
from torch import Tensor


def apportion(share: Tensor, present: Tensor) -> Tensor:
    """Return labels (T x N): class c about `n share_c` times in the n present slots, rounded by largest remainder, in class order."""
    total = present.sum(1, keepdim=True)
    return labels_of_counts(round_counts(share * total, total), present)


def apportion_least(share: Tensor, least: Tensor, present: Tensor) -> Tensor:
    """Return labels (T x N) as `apportion` does, no class below its least count."""
    return labels_of_counts(counts_at_least(share, least, present.sum(1, keepdim=True)), present)


def counts_at_least(share: Tensor, least: Tensor, total: Tensor) -> Tensor:
    """Return whole counts (T x C) that add up to `total`: the least ones, and the rest in proportion to what exceeds them."""
    above = (share * total - least).clamp_min(0)
    rest = total - least.sum(1, keepdim=True)
    sums = above.sum(1, keepdim=True)
    above = torch.where(sums > 0, above, 1)
    return least + round_counts(above / above.sum(1, keepdim=True) * rest, rest)


def round_counts(exact: Tensor, total: Tensor) -> Tensor:
    """Return whole counts (T x C) that add up to `total` (T x 1), by largest remainder."""
    whole = exact.floor()
    missing = total - whole.sum(1, keepdim=True)
    rank = (exact - whole).argsort(dim=1, descending=True, stable=True).argsort(dim=1, stable=True)
    return whole + (rank < missing)


def labels_of_counts(counts: Tensor, present: Tensor) -> Tensor:
    """Return the labels (T x N) of whole counts T x C in class order, over the present slots."""
    slots = (present.to(torch.int64).cumsum(1) - 1).clamp_min(0)
    return torch.searchsorted(counts.to(torch.int64).cumsum(1), slots, right=True).clamp_max(counts.shape[1] - 1)
