"""The estimates of `leakscope.metrics.interval` for many groups at once: one pass over the rows of a sweep.

Rows are samples, a trial is a cluster of rows, a group a set of trials. For group g with mean m over n counted rows in T
trials the variance of m is, as there,

    V = T / (T - 1) * sum_t (sum_j (y_tj - m))^2 / n^2.

A sweep has thousands of groups; sums by code (numpy) make their cost that of the rows. A test holds every number to the
one that `estimate_rate` and `estimate_mean` give for the group by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leakscope.metrics.interval import LEVEL, Estimate, Z, wilson

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Which group and which trial each row belongs to, as codes from 0; the rows of a trial are all in one group."""

    group: Codes
    trial: Codes
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Mean, counted rows, trials that hold any, V, and the sum of squared trial sizes of every group."""

    mean: Floats
    n: Floats
    trials: Floats
    variance: Floats
    squares: Floats


def rates(groups: Groups, hit: Flags, counted: Flags) -> list[Estimate]:
    """Return for each group the share of counted rows that hit; see `metrics.interval.estimate_rate`."""
    sums = _sum_up(groups, hit.astype(np.float64), counted)
    with np.errstate(divide="ignore", invalid="ignore"):
        floor = sums.n**2 / sums.squares
        spread = sums.mean * (1 - sums.mean)
        independent = np.where(sums.variance <= spread / sums.n, sums.n, spread / sums.variance)
        worth = np.maximum(floor, independent * (Z / _t(sums.trials - 1)) ** 2)
    tries = np.where((sums.trials > 1) & (sums.mean > 0) & (sums.mean < 1), worth, floor)
    return [
        Estimate(mean, *wilson(mean, effective), int(n), int(trials)) if n else _nothing()
        for mean, effective, n, trials in zip(
            sums.mean.tolist(), tries.tolist(), sums.n.tolist(), sums.trials.tolist(), strict=True
        )
    ]


def means(
    groups: Groups, values: Floats, counted: Flags, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> list[Estimate]:
    """Return for each group the mean of its counted values; see `metrics.interval.estimate_mean`."""
    sums = _sum_up(groups, values, counted)
    half = _t(sums.trials - 1) * np.sqrt(sums.variance)
    return [
        Estimate(mean, max(mean - width, within[0]), min(mean + width, within[1]), int(n), int(trials))
        if n
        else _nothing()
        for mean, width, n, trials in zip(
            sums.mean.tolist(), half.tolist(), sums.n.tolist(), sums.trials.tolist(), strict=True
        )
    ]


def count_rows(groups: Groups, counted: Flags) -> Codes:
    """Return how many counted rows each group has."""
    return np.bincount(groups.group[counted], minlength=groups.count).astype(np.int64)


def _sum_up(groups: Groups, values: Floats, counted: Flags) -> _Sums:
    group, trial, y = groups.group[counted], groups.trial[counted], values[counted]
    n = np.bincount(group, minlength=groups.count).astype(np.float64)
    clusters = int(groups.trial.max(initial=-1)) + 1
    group_of = np.zeros(clusters, dtype=np.int64)
    group_of[trial] = group
    sizes = np.bincount(trial, minlength=clusters).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(group, y, minlength=groups.count) / n
        excess = np.bincount(trial, y - mean[group], minlength=clusters)
        trials = np.bincount(group_of[sizes > 0], minlength=groups.count).astype(np.float64)
        total = np.bincount(group_of, excess**2, minlength=groups.count)
        variance = np.where(trials > 1, trials / (trials - 1) * total / n**2, np.nan)
    return _Sums(mean, n, trials, variance, np.bincount(group_of, sizes**2, minlength=groups.count).astype(np.float64))


def _t(freedom: Floats) -> Floats:
    """Return the quantiles of Student's t that cut a 95 % interval; NaN below one degree of freedom."""
    from scipy.special import stdtrit

    known = freedom >= 1
    return np.where(known, stdtrit(np.where(known, freedom, 1.0), 0.5 + LEVEL / 2), np.nan)


def _nothing() -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, 0, 0)
