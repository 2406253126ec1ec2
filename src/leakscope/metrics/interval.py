"""Means and rates over trials, each with its count and a 95 % interval that accounts for dependent samples.

Samples of one trial share an update and an attack run, so a trial is a cluster: intervals come from the spread between trials.
With y_tj the value of sample j of trial t, n samples in T trials and m their mean, the variance of m is estimated by

    V = T / (T - 1) * sum_t (sum_j (y_tj - m))^2 / n^2,

which for trials of equal size is the usual variance of the mean of trial means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LEVEL = 0.95
FEW = 5  # trials; the spread of fewer is hardly known
SAME = 1e-12  # relative half-width that is rounding
PSNR_CAP = 100.0
POSSIBLE = {  # range of a mean
    "mse": (0.0, math.inf),
    "psnr": (-math.inf, math.inf),
    "ssim": (-1.0, 1.0),
    **dict.fromkeys(("rouge1", "rouge2", "rouge_l", "token_recall", "proved_share"), (0.0, 1.0)),
}
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or a rate over `n` samples in `trials` trials, and its 95 % interval; NaN where undefined."""

    value: float
    low: float
    high: float
    n: int
    trials: int


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share seen in `n` independent tries (Wilson 1927); `n` need not be whole.

        (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

    >>> low, high = wilson(0.0, 20)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.1611)
    """
    if n == 0:
        return math.nan, math.nan
    bulk = 1 + Z * Z / n
    centre = (share + Z * Z / (2 * n)) / bulk
    half = Z / bulk * math.sqrt(share * (1 - share) / n + (Z / (2 * n)) ** 2)
    low = 0.0 if share == 0 else max(0.0, centre - half)
    return low, 1.0 if share == 1 else min(1.0, centre + half)


def estimate_rate(hit: Tensor, counted: Tensor) -> Estimate:
    """Return the share of counted samples that hit (both T x N), with Wilson's interval on the effective number of tries.

    With one sample per trial this is Wilson's interval on n = T. With more, the number of tries is

        max(floor, min(n, p (1 - p) / V) * (z / t_{T-1})^2),   floor = n^2 / sum_t n_t^2,

    Korn and Graubard 1998's design effect. The floor (T for trials of equal size) is its value if all samples of a trial agree,
    so an attack that never or always succeeds has T tries, not T N. In simulations with 5 to 50 trials of 8 samples, correlated
    to any degree, it covers at least 0.91; Wilson's interval on all samples covers half or less.
    """
    value, sizes, variance = _clusters(hit.double(), counted)
    trials, n = len(sizes), sum(sizes)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, 0)
    tries = floor = n * n / sum(size * size for size in sizes)
    if trials > 1 and 0 < value < 1:
        spread = value * (1 - value)
        independent = n if variance <= spread / n else spread / variance
        tries = max(floor, independent * (Z / _t(trials - 1)) ** 2)
    return Estimate(value, *wilson(value, tries), n, trials)


def estimate_mean(values: Tensor, counted: Tensor, *, within: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Return the mean of the counted values (both T x N) with the interval `m +- t_{T-1} sqrt(V)`, see `ends_of`."""
    value, sizes, variance = _clusters(values.double(), counted)
    trials, n = len(sizes), sum(sizes)
    half = _t(trials - 1) * math.sqrt(variance) if trials > 1 else math.nan
    return Estimate(value, *ends_of(value, half, trials, within), n, trials)


def ends_of(mean: float, half: float, trials: int, within: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a mean's interval `mean +- half` cut at `within`; NaN where the trials say nothing of their spread.

    Fewer than `FEW` trials, or trials that all agree, do not show how far others lie. By Wilson, a share of up to `z^2 / (T + z^2)` of all
    trials may be unlike those seen. In a finite range the interval has at least the means that these would give; for trials that all
    succeed that is Wilson's. Without a finite range, few trials that agree have no interval, as one trial has none.

    >>> [round(end, 2) for end in ends_of(1.0, 0.0, 2, (0.0, 1.0))], [round(end, 2) for end in wilson(1.0, 2)]
    ([0.34, 1.0], [0.34, 1.0])
    """
    if math.isnan(half):
        return math.nan, math.nan
    low, high = within
    agree = half <= SAME * max(1.0, abs(mean))
    if trials < FEW or agree:
        unseen = Z * Z / (trials + Z * Z)
        if math.isfinite(high - low):
            half_low, half_high = max(half, unseen * (mean - low)), max(half, unseen * (high - mean))
            return max(mean - half_low, low), min(mean + half_high, high)
        if agree and trials < FEW:
            return math.nan, math.nan
    return max(mean - half, low), min(mean + half, high)


def _clusters(values: Tensor, counted: Tensor) -> tuple[float, list[int], float]:
    """Return the mean of the counted values, the sizes of the trials that hold any, and V."""
    nonempty = counted.any(1)
    values, counted = values[nonempty], counted[nonempty]
    sizes = [int(size) for size in counted.sum(1).tolist()]
    if not sizes:
        return math.nan, [], math.nan
    mean = float(values[counted].mean())
    if len(sizes) == 1:
        return mean, sizes, math.nan
    excess = (values - mean).masked_fill(~counted, 0.0).sum(1)
    return mean, sizes, len(sizes) / (len(sizes) - 1) * float(excess.square().sum()) / sum(sizes) ** 2


def _t(freedom: int) -> float:
    """Return the quantile of Student's t for a 95 % interval."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))
