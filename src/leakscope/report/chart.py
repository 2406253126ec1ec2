"""A panel of curves as the coordinates of an SVG drawing; the template writes them out, colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.curves import Line, Panel
from leakscope.report.scales import Scale, fit, widen

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 42
COLOURS = 6
SHARE = Scale(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a curve: the outline of its marker, and what it says when pointed at."""

    outline: str
    words: str


@dataclass(frozen=True, slots=True)
class Stroke:
    """A curve or a level: its colour's number, its path, bands (outline, whether it has no lower end), points, sign in the legend."""

    name: str
    colour: int
    symbol: str
    baseline: bool
    path: str
    bands: tuple[tuple[str, bool], ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A panel ready to be written: ticks as (place, text), strokes, whether 0 stands beside a log scale, words for it."""

    title: str
    axis: str
    across: tuple[tuple[float, str], ...]
    upward: tuple[tuple[float, str], ...]
    known: tuple[float, ...]
    broken: float | None
    strokes: tuple[Stroke, ...]
    words: str


def draw(panel: Panel, names: Sequence[str]) -> Drawing:
    """Return the drawing of a panel; the place of a line in `names` is its colour and marker."""
    across = [at for line in panel.lines for at in line.at]
    x = Scale(min(across), max(across)) if panel.linear and min(across) < max(across) else fit(across)
    every = [v for line in panel.lines for v in line.values] + [v for _, v in panel.levels]
    y = SHARE if panel.share else _bounded(every) if panel.bounded else _upward(every)
    share = panel.share
    strokes = [_stroke(line, names.index(line.name), x, y, share) for line in panel.lines]
    strokes += [_level(name, v, names.index(name), y, share) for name, v in panel.levels]
    return Drawing(
        title=panel.title,
        axis=panel.axis,
        across=tuple((_x(place), text) for place, text in x.ticks()),
        upward=tuple((_y(place), _percent(text) if share else text) for place, text in y.ticks()),
        known=tuple(sorted({round(_x(x.place(at)), 1) for line in panel.lines for at in line.at})),
        broken=_x(0.055) if x.zero else None,
        strokes=tuple(strokes),
        words=_words(panel),
    )


def legend(drawings: Sequence[Drawing]) -> list[Stroke]:
    """Return one stroke of each name, lines before levels."""
    found: dict[str, Stroke] = {}
    for drawing in drawings:
        for stroke in drawing.strokes:
            found.setdefault(stroke.name, stroke)
    return sorted(found.values(), key=lambda stroke: stroke.baseline)


def _bounded(values: Sequence[Estimate]) -> Scale:
    """Return the scale of a likeness: 1 at the top, 0 or the least value at the bottom."""
    return widen(Scale(min([0.0, *(v.value for v in values)]), 1.0))


def _upward(values: Sequence[Estimate]) -> Scale:
    scale = fit([v.value for v in values])
    if scale.log:
        return widen(scale)
    ends = [end for v in values for end in (v.low, v.value, v.high) if math.isfinite(end)]
    return widen(fit([max(-1.0, end) for end in ends], from_zero=True)) if ends else SHARE


def _stroke(line: Line, number: int, x: Scale, y: Scale, share: bool) -> Stroke:
    spots = [(_x(x.place(at)), _y(y.place(v.value))) for at, v in zip(line.at, line.values, strict=True)]
    marks = tuple(
        Mark(_marker(number, *spot), f"{line.name}, {numbers.number(at)}: {_says(v, share)}")
        for spot, at, v in zip(spots, line.at, line.values, strict=True)
    )
    known = [(_x(x.place(at)), v) for at, v in zip(line.at, line.values, strict=True) if math.isfinite(v.low)]
    bands = _bands(known, y) if len(known) > 1 and not line.baseline else ()
    return Stroke(line.name, number % COLOURS, _marker(number, 14, 8), line.baseline, _path(spots), bands, marks)


def _bands(known: Sequence[tuple[float, Estimate]], y: Scale) -> tuple[tuple[str, bool], ...]:
    """Return the band above the curve and the one below; on a log scale the lower one may have no end."""
    middle, high, low = ([(px, _y(y.place(get(v)))) for px, v in known] for get in (_value, _high, _low))
    open_below = y.log and any(v.low <= 0 for _, v in known)
    return (_path([*high, *middle[::-1]]) + "Z", False), (_path([*middle, *low[::-1]]) + "Z", open_below)


def _value(v: Estimate) -> float:
    return v.value


def _high(v: Estimate) -> float:
    return v.high


def _low(v: Estimate) -> float:
    return v.low


def _level(name: str, value: Estimate, number: int, y: Scale, share: bool) -> Stroke:
    place = _y(y.place(value.value))
    path = _path([(LEFT, place), (WIDTH - RIGHT, place)])
    mark = Mark(_marker(number, WIDTH - RIGHT, place), f"{name}: {_says(value, share)}")
    return Stroke(name, number % COLOURS, _marker(number, 14, 8), True, path, (), (mark,))


def _x(place: float) -> float:
    return round(LEFT + place * (WIDTH - LEFT - RIGHT), 1)


def _y(place: float) -> float:
    return round(HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM), 1)


def _path(spots: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(spots))


def _marker(number: int, x: float, y: float) -> str:
    """Return a small disc, square, triangle or diamond, so that lines differ without their colours."""
    r = 4.0
    if number % 4 == 0:
        return f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0Z"
    if number % 4 == 1:
        return f"M{x - 3.5:g} {y - 3.5:g}h7v7h-7Z"
    if number % 4 == 2:
        return f"M{x:g} {y - 4.5:g}l4.5 8h-9Z"
    return f"M{x:g} {y - 5:g}l5 5l-5 5l-5 -5Z"


def _percent(text: str) -> str:
    return numbers.percent(float(text))


def _says(value: Estimate, share: bool) -> str:
    shown = numbers.percent(value.value) if share else numbers.number(value.value)
    interval = numbers.percent_interval(value) if share else numbers.number_interval(value)
    return f"{shown}{f' ({interval})' if interval else ''}, n = {value.n}"


def _words(panel: Panel) -> str:
    """Return the chart in a sentence a line: where it begins and where it ends."""
    told = [
        f"{line.name} from {_says(line.values[0], panel.share)} at {numbers.number(line.at[0])} "
        f"to {_says(line.values[-1], panel.share)} at {numbers.number(line.at[-1])}"
        for line in panel.lines
    ]
    told += [f"{name} {_says(value, panel.share)}" for name, value in panel.levels]
    return f"{panel.title} along {panel.axis}: " + "; ".join(told)
