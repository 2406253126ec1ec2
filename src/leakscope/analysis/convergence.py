"""Whether attacks had converged when they ended: Mixing's convergence estimate, and the shares of steady runs.

The supporting information of "Mixing gradients in neural networks" takes the change of the image MSE, and of the gradient MSE,
per iteration over the last 10 iterations, relative to the value, on a logarithmic scale (figures 1 and 2):

    c = log10( |v_b - v_a| / (b - a) / v_b ),      a < b successive recorded iterations.

Values far below the success threshold are left out: a small value makes any fraction large. "10,000 trials" of 1,040 experiments
are most likely the last ten iterations of each, so a point is one iteration of one run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate, estimate_rate

WINDOW = 10
STEADY = 1e-6  # about the resolution of float32
SUFFICIENT = 1e-3  # the paper's term for close enough to steady
BYTE = 255


def change_ratios(
    values: Tensor, at: Tensor, *, window: int = WINDOW, floor: float = 0.0, resting: Tensor | None = None
) -> Tensor:
    """Return the estimate c of T runs at each pair of successive points, T x (K - 1).

    `values` are T x K at iterations `at` (T x K, rising; -1 if not reached). A pair counts if its later point is in the last
    `window` iterations of its run and not below `floor`; others are NaN. No change is minus infinity. `resting` (T) marks runs
    that ended because they no longer moved: their change is 0.
    """
    _check(values, at, window, floor)
    reached = at >= 0
    last = at.amax(1, keepdim=True)
    earlier, later = values[:, :-1].double(), values[:, 1:].double()
    gap = (at[:, 1:] - at[:, :-1]).clamp_min(1)
    change = (later - earlier).abs() / gap
    ratio = torch.where(change == 0, 0.0, change / later.abs())
    if resting is not None:
        ratio = torch.where(resting[:, None], 0.0, ratio)
    counted = reached[:, 1:] & reached[:, :-1] & (at[:, 1:] > last - window) & (later >= floor) & later.isfinite()
    return torch.where(counted & ratio.isfinite(), ratio.log10(), math.nan)


def image_curve(truth: Tensor, snapshots: Tensor, pairing: Tensor | None = None) -> Tensor:
    """Return the image MSE of each snapshot of ONE trial, averaged over its samples: S values from S x N x ....

    `truth` is N x ... in [0, 1]. Stored snapshots are bytes, too coarse for small changes. `pairing` (N) is the final pairing of
    guesses and samples, used for all snapshots. NaN for a snapshot that was not reached.
    """
    shown = snapshots.double() / BYTE if snapshots.dtype == torch.uint8 else snapshots.double().clamp(0, 1)
    if shown.ndim < 2 or shown.shape[1:] != truth.shape:
        raise InputError(f"snapshots must be S x {tuple(truth.shape)}, got {tuple(snapshots.shape)}")
    shown = shown if pairing is None else shown[:, pairing]
    return (shown - truth.double()).square().flatten(1).mean(1)


def image_curves(truth: Tensor, snapshots: Tensor, pairing: Tensor, scored: Tensor) -> Tensor:
    """Return `image_curve` of T trials over the samples that are `scored` (T x N): T x S from T x S x N x ..., paired by T x N."""
    pairs = zip(truth, snapshots, pairing, scored, strict=True)
    return torch.stack([image_curve(private[real], shots[:, order[real]]) for private, shots, order, real in pairs])


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of points of many runs: `steady` (no change in float32), `close` (under 1e-3), `moving`.

    `settled` is the share of RUNS without a moving point. `left_out` counts runs without points: too short, or below the floor.
    """

    steady: Estimate
    close: Estimate
    moving: Estimate
    settled: Estimate
    left_out: int


def shares(ratios: Tensor, *, steady: float = STEADY, sufficient: float = SUFFICIENT) -> Shares:
    """Return the shares of the points of `change_ratios`, with intervals from the spread between runs."""
    if not 0 < steady < sufficient:
        raise InputError(f"shares needs 0 < steady < sufficient, got {steady} and {sufficient}")
    counted = ~ratios.isnan()
    still, near = ratios < math.log10(steady), ratios < math.log10(sufficient)
    runs = counted.any(1, keepdim=True)
    return Shares(
        steady=estimate_rate(still & counted, counted),
        close=estimate_rate(near & ~still & counted, counted),
        moving=estimate_rate(~near & counted, counted),
        settled=estimate_rate((near | ~counted).all(1, keepdim=True) & runs, runs),
        left_out=int((~runs).sum()),
    )


def histogram(ratios: Tensor, decades: Sequence[int] = tuple(range(-12, 3))) -> dict[str, int]:
    """Return the points per decade, for a plot: 'none' for no change, '1e-12' for [1e-12, 1e-11) etc.; outer decades are open."""
    points = ratios[~ratios.isnan()]
    moving = points[points > -math.inf].floor().clamp(min(decades), max(decades)).to(torch.int64).tolist()
    return {"none": int((points == -math.inf).sum())} | {f"1e{decade}": moving.count(decade) for decade in decades}


def _check(values: Tensor, at: Tensor, window: int, floor: float) -> None:
    if values.ndim != 2 or values.shape != at.shape:
        raise InputError(f"change_ratios needs values and at of T x K, got {tuple(values.shape)} and {tuple(at.shape)}")
    if window < 1 or not floor >= 0:
        raise InputError(f"change_ratios needs a window of at least 1 and a floor not below 0, got {window}, {floor}")
