"""Recovery rate of the Mixing paper: the share of private images recovered, by MSE alone, over a curve of thresholds.

The supporting information (table 1) names no threshold. Ours is 0.005 for images in [0, 1]: a mixing defence aims to leave the
mean of two images, (x + y) / 2, whose MSE to either is |x - y|^2 / 4. For pairs of MNIST test digits of one class, 1 % of these
are under 0.005 and 4 to 5 % under 0.01. So at 0.005 a mixture rarely counts as a recovery, while noise of 7 % of the range, which
hides nothing, still does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate, estimate_rate

THRESHOLD = 0.005
THRESHOLDS = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 7e-3, 1e-2, 1.5e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The rates at one threshold: of samples, and of trials with every sample recovered."""

    threshold: float
    samples: Estimate
    trials: Estimate


def recovery(mse: Tensor, scored: Tensor, *, threshold: float = THRESHOLD) -> Recovery:
    """Return the recovery rates for the MSE of T x N samples; `scored` is False for padding. NaN is no recovery.

    >>> import torch
    >>> curve = recovery(torch.tensor([[1e-6, 0.2], [1e-4, 1e-3]]), torch.ones(2, 2, dtype=torch.bool))
    >>> curve.samples.value, curve.trials.value
    (0.75, 0.5)
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold of a recovery must be an MSE in [0, 1], got {threshold}")
    if mse.ndim != 2 or mse.shape != scored.shape:
        raise InputError(f"recovery needs MSE and scored of T x N, got {tuple(mse.shape)} and {tuple(scored.shape)}")
    hit = (mse <= threshold) & scored
    some = scored.any(1, keepdim=True)
    return Recovery(threshold, estimate_rate(hit, scored), estimate_rate((hit | ~scored).all(1, keepdim=True), some))


def recovery_curve(mse: Tensor, scored: Tensor, thresholds: Sequence[float] = THRESHOLDS) -> tuple[Recovery, ...]:
    """Return the rates at every threshold, in the order given."""
    return tuple(recovery(mse, scored, threshold=threshold) for threshold in thresholds)
