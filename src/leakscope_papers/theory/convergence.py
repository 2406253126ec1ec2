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
