"""Losses of one trial: one value per example, so that masks, per-example clipping and private heads can be applied.

A loss compares outputs with rows of class probabilities; integer labels are converted with `one_hot` first, also for `mse`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return `-sum_c t_c log softmax(o)_c` for each example; `target` holds class probabilities."""
    return -(target * torch.log_softmax(output, dim=-1)).sum(-1)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over classes of `(o - t)^2` for each example; `target` is one-hot or soft, outputs have no softmax.

    Its gradient `2 (o - t) / C` does not vanish where the network is confident, and all examples pull on all classes
    (docs/mixing.md).
    """
    return (output - target).square().mean(-1)


def softmax_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return cross entropy of a network that already ends in a softmax (SME's LeNet)."""
    return cross_entropy(torch.softmax(output, dim=-1), target)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "softmax_cross_entropy": softmax_cross_entropy}


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values whose mask is set; 0 if none is."""
    weight = mask.to(values.dtype)
    return torch.where(mask.bool(), values, 0).sum() / weight.sum().clamp_min(1)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Return labels as one-hot rows (by a comparison, which works under vmap and tracing)."""
    return (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)).to(dtype)
