"""Losses of one trial: one value per example, so that masks, per-example clipping and private heads can be applied.

A loss compares outputs with rows of class probabilities; integer labels are converted with `one_hot` first, also for `mse`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.learning.targets import Targets

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return `-sum_c t_c log softmax(o)_c` for each example; `target` holds class probabilities."""
    return -(target * torch.log_softmax(output, dim=-1)).sum(-1)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over classes of `(o - t)^2` for each example; `target` is one-hot or soft, outputs have no softmax.

    Its gradient `2 (o - t) / C` does not vanish where the network is confident, and all examples pull on all classes
    (docs/explanation/mixing.md).
    """
    return (output - target).square().mean(-1)


def softmax_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return cross entropy of a network that already ends in a softmax (SME's LeNet)."""
    return cross_entropy(torch.softmax(output, dim=-1), target)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "softmax_cross_entropy": softmax_cross_entropy}


@dataclass(frozen=True, slots=True, eq=False)
class UserLoss:
    """A caller's loss `(output, target) -> scalar`, or one value or more per example; targets of any shape and type.

    A scalar is repeated for each example, so that its mean is the scalar. `each` calls the function on every example alone, which
    padded batches need and which is the same only for a mean over examples. `targets` says how an attack searches the targets, None
    that it cannot, for the `reason`; `relaxed(function, output, rows)` is its value for class probabilities.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    name: str  # none of LOSSES
    each: bool = False
    targets: Targets | None = None
    relaxed: Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], Tensor] | None = None
    reason: str = ""

    def __str__(self) -> str:
        return self.name

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return one value per example."""
        relaxed = self.relaxed if target.is_floating_point() else None
        function = self.function if relaxed is None else partial(relaxed, self.function)
        many = torch.func.vmap(lambda o, t: function(o[None], t[None]).mean()) if self.each else function
        value = many(output, target)
        whole = value.ndim == 0 or len(value) != len(output)
        return value.mean().expand(len(output)) if whole else value.flatten(1).mean(1) if value.ndim > 1 else value

    def targets_from(self, free: Tensor | None, known: Tensor | None) -> Tensor:
        """Return the targets of ONE trial that free numbers stand for, or the known ones."""
        if free is not None and self.targets is not None:
            return self.targets.of(free)
        if known is None:
            raise InputError(f"the targets are neither known nor searched: {self.reason or 'optimise them (joint)'}")
        return known


def loss_of(loss: str | Loss) -> Loss:
    """Return a loss by name, or the caller's own; raise for a name that is none of LOSSES."""
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise InputError(f"the loss is {loss}, which no attack simulates; simulated losses: {', '.join(LOSSES)}")
    return LOSSES[loss]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values whose mask is set; 0 if none is."""
    weight = mask.to(values.dtype)
    return torch.where(mask.bool(), values, 0).sum() / weight.sum().clamp_min(1)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Return labels as one-hot rows (by a comparison, which works under vmap and tracing)."""
    return (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)).to(dtype)
