"""The axes of an item's plot: scales, ticks, titles and the frame, shared by all panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.charts import SHARE, Frame, Scale, Tick, fit, interval_ends, measure_scale, widen
from leakscope_papers.characteristics.characteristic import RED_FROM, place
from leakscope_papers.characteristics.drawing import AXIS as RATIO_TITLE
from leakscope_papers.measure_names import title_of
from leakscope_papers.pages.plots import Plotted, Series

WIDTH, HEIGHT, TOP, SIDE, MARGIN = 360, 250, 30, 50, 16
BOTTOM, TURNED_BOTTOM = 44, 92
LETTER, APART = 7.0, 34.0  # the width of a letter, and the distance of two numbers on an axis
SHORT = 24  # letters of a title that fits above an axis
INSET = 10.0  # from the edge of the frame to the first number of an axis
BEYOND = 0.3  # extension of a characteristic beyond its last point
LINES = ("solid lines", "dashed lines")


@dataclass(frozen=True, slots=True)
class Across:
    """The x axis: `words` in this order with equal spacing; without them `scale` places numbers."""

    scale: Scale
    words: tuple[str, ...] = ()
    ratio: bool = False

    def place(self, x: float | str) -> float:
        """Return the position of a number or a word, in [0, 1]."""
        if self.words:
            return (self.words.index(position_text(x)) + 0.5) / len(self.words)
        return self.scale.place(place(float(x)) if self.ratio else float(x))


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a plot and its frame; `rates` makes the left axis one of shares, `turned` rotates the words of the x axis."""

    across: Across
    left: Scale
    right: Scale
    frame: Frame
    rates: bool
    columns: bool
    chance_right: bool
    turned: bool

    def spot(self, x: float | str, value: float, *, right: bool, aside: float = 0.0) -> tuple[float, float]:
        """Return the coordinates of a value on the right or left axis, shifted by `aside`."""
        scale = self.right if right else self.left
        return round(self.frame.x(self.across.place(x)) + aside, 1), self.frame.y(scale.place(value))


def axes_of(plotted: Plotted, series: Sequence[Series]) -> Axes:
    """Return the axes that contain every number of these lines."""
    plot, across = plotted.plot, _across(plotted, series)
    left, right = (_estimates([s for s in series if s.right is side]) for side in (False, True))
    (right if plot.second_axis else left).extend(_chances(series))
    margin = SIDE if plot.second_axis else MARGIN
    room = (WIDTH - SIDE - margin) / max(len(across.words), 1)
    turned = any(LETTER * len(word) > room for word in across.words)
    return Axes(
        across=across,
        left=_left_scale(plotted, left),
        right=linear_scale(right, zero=True),
        frame=Frame(
            width=WIDTH,
            height=HEIGHT + (TURNED_BOTTOM - BOTTOM if turned else 0),
            left=SIDE,
            right=margin,
            top=TOP,
            bottom=TURNED_BOTTOM if turned else BOTTOM,
            inset=0.0 if across.words or plot.curve or plot.regions else INSET,
        ),
        rates=plotted.rates,
        columns=plot.bars,
        chance_right=bool(plot.second_axis),
        turned=turned,
    )


def ticks_across(plotted: Plotted, series: Sequence[Series], axes: Axes) -> tuple[tuple[Tick, ...], tuple[float, ...]]:
    """Return the ticks of the x axis (as many settings as fit, or round numbers), and the settings' coordinates if they are the ticks."""
    across, frame = axes.across, axes.frame
    if across.words:
        return tuple((frame.x(across.place(word)), word) for word in across.words), ()
    if plotted.plot.along or plotted.plot.curve:
        return tuple((frame.x(at), text) for at, text in across.scale.ticks()), ()
    settings = sorted({float(point.x) for one in series for point in one.points})
    written: list[Tick] = []
    for x in settings:
        at = frame.x(across.place(x))
        if not written or at - written[-1][0] >= max(APART, LETTER * len(numbers.short(x))):
            written.append((at, numbers.short(x)))
    return tuple(written), tuple(frame.x(across.place(x)) for x in settings)


def axis_titles(plotted: Plotted) -> tuple[str, str, str]:
    """Return the titles of the x axis, the left and the right axis."""
    plot = plotted.plot
    below = plot.across or (RATIO_TITLE if plot.regions else title_of(plot.x))
    if not plot.second_axis:
        return below, title_of(plot.y[0]) if len(plot.y) == 1 and plot.lines else "", ""
    left, right = (
        title_of(names[0]) if len(names) == 1 and len(title_of(names[0])) <= SHORT else ""
        for names in (plot.y, plot.second_axis)
    )
    return below, ": ".join(word for word in (left, LINES[0]) if word), ": ".join(w for w in (right, LINES[1]) if w)


def position_text(x: float | str) -> str:
    """Return a position on the x axis as text."""
    return x if isinstance(x, str) else numbers.short(x)


def _across(plotted: Plotted, series: Sequence[Series]) -> Across:
    """Return the x axis: words if there is any, else the ratio of a characteristic, or numbers."""
    xs = [x for one in series for x in (*(p.x for p in one.points), *(x for x, _ in one.published))]
    if any(isinstance(x, str) for x in xs):
        return Across(SHARE, tuple(dict.fromkeys(position_text(x) for x in xs)))
    values = [float(x) for x in xs]
    if plotted.plot.regions:
        return Across(Scale(0.0, max([place(RED_FROM), *(place(x) for x in values)]) + BEYOND), ratio=True)
    if plotted.plot.curve and min(values) < max(values):
        return Across(Scale(min(values), max(values)))
    return Across(fit(values))


def _left_scale(plotted: Plotted, values: Sequence[Estimate]) -> Scale:
    plot = plotted.plot
    if plotted.rates:
        return SHARE
    if plot.curve or plot.regions or plot.bars or plot.chance:
        return linear_scale(values, zero=not plot.curve, cut=bool(plot.curve))
    ends = interval_ends(values)
    if (
        ends and min(ends) > max(ends) / 2 and not fit([v.value for v in values]).log
    ):  # all far from 0: begin close to them
        return linear_scale(values, zero=False)
    return measure_scale(values)


def linear_scale(values: Sequence[Estimate], *, zero: bool, cut: bool = False) -> Scale:
    """Return a linear scale that holds these values and their intervals, and 0 if `zero`.

    >>> from leakscope.metrics.interval import Estimate
    >>> linear_scale([Estimate(0.9, 0.3, 1.5, 2, 2)], zero=False, cut=True)
    Scale(low=0.2, high=1.0, log=False, zero=False)
    >>> linear_scale([Estimate(3.0, 2.0, 4.0, 9, 9)], zero=True)
    Scale(low=0.0, high=4.0, log=False, zero=False)
    """
    ends = interval_ends(values)
    if not ends:
        return SHARE
    if cut:  # intervals do not extend it beyond shares in [0, 1] or cosines in [-1, 1]
        least, most = _possible_range([v.value for v in values])
        ends = [min(max(end, least), most) for end in ends]
    low, high = min([0.0, *ends] if zero else ends), max(ends)
    return widen(Scale(low, high) if low < high else Scale(low - 0.5, high + 0.5))


def _possible_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of shares or cosines; for other numbers one that is wider by their span on each side."""
    low, high = min(values), max(values)
    if low >= -1 and high <= 1:
        return (0.0 if low >= 0 else -1.0), 1.0
    return low - (high - low), high + (high - low)


def _estimates(series: Sequence[Series]) -> list[Estimate]:
    """Return every number of these lines, measured or printed."""
    values = [point.value for one in series for point in one.points]
    return values + [_bare(value) for one in series for _, value in one.published]


def _chances(series: Sequence[Series]) -> list[Estimate]:
    """Return the distinct chance levels of these lines' points."""
    levels = dict.fromkeys(p.chance for one in series for p in one.points if p.chance is not None)
    return [_bare(value) for value in levels]


def _bare(value: float) -> Estimate:
    return Estimate(value, math.nan, math.nan, 0, 0)
