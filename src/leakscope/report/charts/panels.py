"""Panels of curves: a measure along a numeric axis, as coordinates of an SVG drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.charts.scales import SHARE, Scale, fit, likeness_scale, measure_scale
from leakscope.report.charts.shapes import (
    COLOURS,
    Frame,
    Mark,
    Tick,
    band,
    estimate_text,
    legend_marker,
    marker,
    path,
    tick_text,
)

FRAME = Frame(width=380, height=250, left=52, right=14, top=12, bottom=42)
BREAK = 0.055  # place of the axis break between 0 and a log scale


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: estimates at increasing axis values."""

    name: str
    at: tuple[float, ...]
    values: tuple[Estimate, ...]
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure along one axis."""

    title: str
    axis: str
    share: bool  # drawn from 0 to 100 %
    bounded: bool  # by 1, so never on a log scale
    lines: tuple[Line, ...]
    levels: tuple[tuple[str, Estimate], ...] = ()  # estimates that do not depend on the axis
    linear: bool = False  # axis without a log scale, such as rounds

    def names(self) -> list[str]:
        """Return the names of lines and levels."""
        return [line.name for line in self.lines] + [name for name, _ in self.levels]


@dataclass(frozen=True, slots=True)
class Stroke:
    """A drawn curve or level; `bands` are (outline, whether open below)."""

    name: str
    colour: int
    symbol: str
    baseline: bool
    path: str
    bands: tuple[tuple[str, bool], ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn panel; `known` are the axis coordinates of the points, `broken` is the place of the axis break."""

    title: str
    axis: str
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    known: tuple[float, ...]
    broken: float | None
    strokes: tuple[Stroke, ...]
    words: str
    frame: Frame = FRAME


def draw_panel(panel: Panel, names: Sequence[str]) -> Drawing:
    """Return the drawing of a panel; a line's index in `names` determines its colour and marker."""
    across = [at for line in panel.lines for at in line.at]
    x = Scale(min(across), max(across)) if panel.linear and min(across) < max(across) else fit(across)
    values = [v for line in panel.lines for v in line.values] + [v for _, v in panel.levels]
    y = SHARE if panel.share else likeness_scale(values) if panel.bounded else measure_scale(values)
    strokes = [_curve(line, names.index(line.name), x, y, panel.share) for line in panel.lines]
    strokes += [_level(name, v, names.index(name), y, panel.share) for name, v in panel.levels]
    return Drawing(
        title=panel.title,
        axis=panel.axis,
        across=tuple((FRAME.x(place), text) for place, text in x.ticks()),
        upward=tuple((FRAME.y(place), tick_text(text, panel.share)) for place, text in y.ticks()),
        known=tuple(sorted({FRAME.x(x.place(at)) for at in across})),
        broken=FRAME.x(BREAK) if x.zero else None,
        strokes=tuple(strokes),
        words=_describe(panel),
    )


def draw_panels(panels: Sequence[Panel]) -> tuple[list[Drawing], list[Stroke]]:
    """Return the drawings of panels and their legend, lines before levels; a name has the same colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.names()))
    drawings = [draw_panel(panel, names) for panel in panels]
    strokes: dict[str, Stroke] = {}
    for drawing in drawings:
        for stroke in drawing.strokes:
            strokes.setdefault(stroke.name, stroke)
    return drawings, sorted(strokes.values(), key=lambda stroke: stroke.baseline)


def _curve(line: Line, number: int, x: Scale, y: Scale, share: bool) -> Stroke:
    spots = [(FRAME.x(x.place(at)), FRAME.y(y.place(v.value))) for at, v in zip(line.at, line.values, strict=True)]
    marks = tuple(
        Mark(marker(number, *spot), f"{line.name}, {numbers.number(at)}: {estimate_text(v, share)}")
        for spot, at, v in zip(spots, line.at, line.values, strict=True)
    )
    known = [(FRAME.x(x.place(at)), v) for at, v in zip(line.at, line.values, strict=True) if math.isfinite(v.low)]
    bands = _bands(known, y) if len(known) > 1 and not line.baseline else ()
    return Stroke(line.name, number % COLOURS, legend_marker(number), line.baseline, path(spots), bands, marks)


def _bands(known: Sequence[tuple[float, Estimate]], y: Scale) -> tuple[tuple[str, bool], ...]:
    """Return the bands above and below the curve; on a log scale the lower one may be open."""
    middle, high, low = (
        [(at, FRAME.y(y.place(read(v)))) for at, v in known] for read in map(attrgetter, ("value", "high", "low"))
    )
    open_below = y.log and any(v.low <= 0 for _, v in known)
    return (band(high, middle), False), (band(middle, low), open_below)


def _level(name: str, value: Estimate, number: int, y: Scale, share: bool) -> Stroke:
    height = FRAME.y(y.place(value.value))
    line = path([(FRAME.first, height), (FRAME.last, height)])
    mark = Mark(marker(number, FRAME.last, height), f"{name}: {estimate_text(value, share)}")
    return Stroke(name, number % COLOURS, legend_marker(number), True, line, (), (mark,))


def _describe(panel: Panel) -> str:
    """Return the chart in words: first and last value of each line."""
    parts = [
        f"{line.name} from {estimate_text(line.values[0], panel.share)} at {numbers.number(line.at[0])} "
        f"to {estimate_text(line.values[-1], panel.share)} at {numbers.number(line.at[-1])}"
        for line in panel.lines
    ]
    parts += [f"{name} {estimate_text(value, panel.share)}" for name, value in panel.levels]
    return f"{panel.title} along {panel.axis}: " + "; ".join(parts)
