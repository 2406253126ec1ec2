"""Scales of a plot of an item: numbers or words below it, and what its left and right axes must hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.analysis.characteristic import RED_FROM, place
from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.chart import SHARE, _upward
from leakscope.report.scales import Scale, fit, widen
from leakscope_papers.pages.plots import Plotted, Series

BEYOND = 0.3  # how far a characteristic goes on past its last point


@dataclass(frozen=True, slots=True)
class Across:
    """The axis below: `words` have equal room each, in this order; without them `scale` places numbers."""

    scale: Scale
    words: tuple[str, ...] = ()
    ratio: bool = False

    def place(self, x: float | str) -> float:
        """Return where a number or a word stands, in [0, 1]."""
        if self.words:
            return (self.words.index(in_word(x)) + 0.5) / len(self.words)
        return self.scale.place(place(float(x)) if self.ratio else float(x))


def across_of(made: Plotted, every: Sequence[Series]) -> Across:
    """Return the axis below: words as soon as one is there, else the ratio of a characteristic, or numbers."""
    xs = [x for series in every for x in (*(p.x for p in series.points), *(x for x, _ in series.published))]
    if any(isinstance(x, str) for x in xs):
        return Across(SHARE, tuple(dict.fromkeys(in_word(x) for x in xs)))
    known = [float(x) for x in xs]
    if made.plot.regions:
        return Across(Scale(0.0, max([place(RED_FROM), *(place(x) for x in known)]) + BEYOND), ratio=True)
    if made.plot.curve and min(known) < max(known):
        return Across(Scale(min(known), max(known)))
    return Across(fit(known))


def in_word(x: float | str) -> str:
    """Return a place across as it is written."""
    return x if isinstance(x, str) else numbers.short(x)


def estimates(every: Sequence[Series]) -> list[Estimate]:
    """Return every number of these lines, measured or printed."""
    values = [point.value for series in every for point in series.points]
    return values + [Estimate(v, math.nan, math.nan, 0, 0) for series in every for _, v in series.published]


def chances(every: Sequence[Series]) -> list[Estimate]:
    """Return what guessing gives at the points of these lines, once each."""
    found = dict.fromkeys(p.chance for series in every for p in series.points if p.chance is not None)
    return [Estimate(value, math.nan, math.nan, 0, 0) for value in found]


def upward(values: Sequence[Estimate]) -> Scale:
    """Return the scale of measures that are no rates: logarithmic over a decade, else from 0 unless all are far from it."""
    scale = _upward(values)
    ends = [end for v in values for end in (v.low, v.value, v.high) if math.isfinite(end)]
    return linear(values, zero=False) if not scale.log and ends and min(ends) > max(ends) / 2 else scale


def linear(values: Sequence[Estimate], *, zero: bool, cut: bool = False) -> Scale:
    """Return a linear scale that holds these numbers and their intervals; `zero` makes it hold 0.

    With `cut` intervals do not carry it beyond what the numbers seem to be: shares in [0, 1], cosines in [-1, 1]. Bands end at the frame.

    >>> linear([Estimate(0.9, 0.3, 1.5, 2, 2)], zero=False, cut=True), linear([Estimate(3.0, 2.0, 4.0, 9, 9)], zero=True)
    (Scale(low=0.2, high=1.0, log=False, zero=False), Scale(low=0.0, high=4.0, log=False, zero=False))
    """
    ends = [end for v in values for end in (v.low, v.value, v.high) if math.isfinite(end)]
    if not ends:
        return SHARE
    if cut:
        least, most = _possible([v.value for v in values])
        ends = [min(max(end, least), most) for end in ends]
    low, high = min([0.0, *ends] if zero else ends), max(ends)
    return widen(Scale(low, high) if low < high else Scale(low - 0.5, high + 0.5))


def _possible(values: Sequence[float]) -> tuple[float, float]:
    """Return what numbers seem bounded by; those that are neither shares nor cosines by a span more than their own."""
    low, high = min(values), max(values)
    if low >= -1 and high <= 1:
        return (0.0 if low >= 0 else -1.0), 1.0
    return low - (high - low), high + (high - low)
