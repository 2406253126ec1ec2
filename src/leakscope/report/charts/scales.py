"""Scales of a chart: numbers to places in [0, 1], linear or logarithmic, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.report.numbers import power_of_ten, short

if TYPE_CHECKING:
    from leakscope.metrics.interval import Estimate

DECADES = 10.0
GAP = 0.12
MOST_TICKS = 6
SMALLEST = 1e-300  # smaller magnitudes count as 0


@dataclass(frozen=True, slots=True)
class Scale:
    """A map from [low, high] to [0, 1]; on a log scale with `zero`, 0 is at 0 and the rest begins at GAP."""

    low: float
    high: float
    log: bool = False
    zero: bool = False

    def place(self, value: float) -> float:
        """Return the place of a number, clamped to [0, 1].

        >>> Scale(1e-3, 1e-1, log=True).place(1e-2), Scale(0, 4).place(1), Scale(1e-3, 1, log=True).place(-5)
        (0.5, 0.25, 0.0)
        """
        if not self.log:
            return _inside((value - self.low) / (self.high - self.low))
        start = GAP if self.zero else 0.0
        if value <= 0:
            return 0.0
        low, high = math.log10(self.low), math.log10(self.high)
        return _inside(max(start, start + (1 - start) * (math.log10(value) - low) / (high - low)))

    def ticks(self) -> list[tuple[float, str]]:
        """Return the places and texts of a few round numbers."""
        marks = _decades(self.low, self.high) if self.log else _steps(self.low, self.high)
        texts = [(self.place(v), power_of_ten(v) if self.log else short(v)) for v in marks]
        return [(0.0, "0"), *texts] if self.zero else texts


SHARE = Scale(0.0, 1.0)


def fit(values: Iterable[float], *, from_zero: bool = False) -> Scale:
    """Return the scale of numbers: log if the positive ones span a factor of `DECADES` and none is negative.

    >>> fit([0, 1e-4, 1e-2]), fit([1, 2, 4])
    (Scale(low=0.0001, high=0.01, log=True, zero=True), Scale(low=1, high=4, log=False, zero=False))
    """
    finite = [v if abs(v) > SMALLEST else 0.0 for v in values if math.isfinite(v)]
    if not finite:
        return SHARE
    above = [v for v in finite if v > 0]
    if above and min(finite) >= 0 and max(above) >= DECADES * min(above) * (1 - 1e-9):
        return Scale(min(above), max(above), log=True, zero=0 in finite)
    low, high = (min(0.0, *finite) if from_zero else min(finite)), max(finite)  # from_zero: a linear scale begins at 0
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    return Scale(low, high)


def widen(scale: Scale) -> Scale:
    """Return a log scale extended to whole decades, a linear one to round numbers."""
    if scale.log:
        low, high = math.floor(math.log10(scale.low) + 1e-9), math.ceil(math.log10(scale.high) - 1e-9)
        return Scale(10.0**low, 10.0**high, log=True, zero=scale.zero)
    step = _step(scale.low, scale.high)
    return Scale(math.floor(scale.low / step + 1e-9) * step, math.ceil(scale.high / step - 1e-9) * step)


def likeness_scale(values: Sequence[Estimate]) -> Scale:
    """Return the scale of a similarity: 1 at the top, 0 or the smallest value at the bottom."""
    return widen(Scale(min([0.0, *(v.value for v in values)]), 1.0))


def measure_scale(values: Sequence[Estimate]) -> Scale:
    """Return the scale of measures that are not rates: logarithmic over a decade, else linear from 0."""
    scale = fit([v.value for v in values])
    if scale.log:
        return widen(scale)
    ends = interval_ends(values)
    return widen(fit([max(-1.0, end) for end in ends], from_zero=True)) if ends else SHARE


def interval_ends(values: Sequence[Estimate]) -> list[float]:
    """Return the finite values and interval ends."""
    return [end for v in values for end in (v.low, v.value, v.high) if math.isfinite(end)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / MOST_TICKS))
    return [10.0**e for e in range(last, first - 1, -every)][::-1]


def _steps(low: float, high: float) -> list[float]:
    step = _step(low, high)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _step(low: float, high: float) -> float:
    """Return 1, 2 or 5 times a power of ten such that about five steps fill the range."""
    rough = (high - low) / 5
    base = 10.0 ** math.floor(math.log10(rough))
    return next(m * base for m in (1, 2, 5, 10) if m * base >= rough * (1 - 1e-9))


def _inside(place: float) -> float:
    return min(1.0, max(0.0, place))
