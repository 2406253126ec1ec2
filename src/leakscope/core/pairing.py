"""Matching of reconstructions to true inputs: the assignment with the smallest total cost."""

from __future__ import annotations

import torch
from torch import Tensor


def pair(cost: Tensor) -> Tensor:
    """Return for each row of an N x N cost matrix the column of the cheapest perfect matching.

    >>> pair(torch.tensor([[0.0, 1.0], [0.1, 5.0]]))
    tensor([1, 0])
    """
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"pair needs a square cost matrix, got shape {tuple(cost.shape)}")
    if cost.shape[0] == 1:
        return torch.zeros(1, dtype=torch.int64)
    from scipy.optimize import linear_sum_assignment

    finite = torch.nan_to_num(cost.detach().double().cpu(), nan=1e30, posinf=1e30, neginf=-1e30)
    _, column = linear_sum_assignment(finite.numpy())
    return torch.as_tensor(column, dtype=torch.int64)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the N x M matrix of mean squared differences between the items of two stacks."""
    x, y = a.flatten(1), b.flatten(1)
    return torch.stack([(row - y).square().mean(-1) for row in x])
