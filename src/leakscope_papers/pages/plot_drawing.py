"""A plot of an item as the coordinates of SVG drawings: panels on the same scales, one or two axes, 95 % bars or bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.analysis.characteristic import GREEN_UP_TO, RED_FROM, Region, place
from leakscope.report import numbers
from leakscope.report.characteristic_chart import Shade
from leakscope.report.chart import COLOURS, SHARE, Mark, _marker, _path, _percent, _says
from leakscope.report.scales import Scale
from leakscope_papers.measure_names import title_of
from leakscope_papers.pages.plot_scales import Across, across_of, chances, estimates, in_word, linear, upward
from leakscope_papers.pages.plot_shapes import Chance, Placing, band, chance_line, column, whisker
from leakscope_papers.pages.plots import PlotPanel, Plotted, Series

WIDTH, HEIGHT, TOP, SIDE, MARGIN = 360, 250, 30, 50, 16
BOTTOM, TURNED_BOTTOM = 44, 92
LETTER, APART = 7.0, 34.0  # the width of a letter, and between two numbers on an axis
SHORT = 24  # letters of a name that fits above an axis
SOME_MARKS = 6
WIDEST = 40.0  # a column
INSIDE = 10.0  # from the edge of the frame to the first number of an axis
LINES = ("solid lines", "dashed lines")
OTHERWISE = "Measured otherwise than in the paper: "
RATIO_NAME = "log10(||B|| / ||E|| + 1)"
REGIONS = {
    Region.GREEN.value: "green: the perturbation is above the gradient",
    Region.WHITE.value: "white: between",
    Region.RED.value: "red: the perturbation is below a tenth of the gradient",
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One line: its colour's number, whether it is dashed (right axis), path, bars, band, columns, points, and open marks for print."""

    name: str
    colour: int
    dashed: bool
    symbol: str
    path: str
    bars: str
    band: str
    columns: str
    marks: tuple[Mark, ...]
    published: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class PanelDrawing:
    """A panel ready to be written: its title, lines, chance and words for it."""

    title: str
    series: tuple[Drawn, ...]
    chance: Chance | None
    words: str


@dataclass(frozen=True, slots=True)
class PlotDrawing:
    """A plot ready to be written: ticks as (place, text), shades, names of the axes, panels, key, and edges of the frame."""

    title: str
    note: str
    across: tuple[tuple[float, str], ...]
    known: tuple[float, ...]
    left: tuple[tuple[float, str], ...]
    right: tuple[tuple[float, str], ...]
    names: tuple[str, str, str]
    shades: tuple[Shade, ...]
    turned: bool
    panels: tuple[PanelDrawing, ...]
    key: tuple[Drawn, ...]
    published: bool
    last: int
    floor: int
    broken: float | None
    width: int = WIDTH
    height: int = HEIGHT
    first: int = SIDE
    top: int = TOP


@dataclass(frozen=True, slots=True)
class _Frame:
    across: Across
    left: Scale
    right: Scale
    last: int
    height: int
    floor: int
    rates: bool
    inside: float
    columns: bool
    chance_right: bool

    def x(self, at: float) -> float:
        return round(SIDE + self.inside + at * (self.last - SIDE - 2 * self.inside), 1)

    def y(self, at: float) -> float:
        return round(self.floor - at * (self.floor - TOP), 1)


def draw(made: Plotted) -> PlotDrawing:
    """Return the drawing of a plot that has panels; all of them share their scales, so that they compare."""
    plot, every = made.plot, [series for panel in made.panels for series in panel.series]
    frame = _frame(made, every)
    names = list(dict.fromkeys(series.name for series in every))
    panels = tuple(_panel(panel, names, frame, plot.title, bool(plot.curve)) for panel in made.panels)
    drawn = {series.name: series for panel in panels for series in panel.series}
    ticks, known, turned = _ticks(made, every, frame)
    return PlotDrawing(
        title=plot.title,
        note=_note(made, panels),
        across=ticks,
        known=known,
        left=tuple((frame.y(at), _percent(text) if made.rates else text) for at, text in frame.left.ticks()),
        right=tuple((frame.y(at), text) for at, text in frame.right.ticks()) if plot.second_axis else (),
        names=_names(made),
        shades=_shades(frame) if plot.regions else (),
        turned=turned,
        panels=panels,
        key=tuple(drawn[name] for name in names),
        published=any(series.published for series in every),
        last=frame.last,
        floor=frame.floor,
        broken=frame.x(0.055) if frame.across.scale.zero and not frame.across.words else None,
        height=frame.height,
    )


def _note(made: Plotted, panels: Sequence[PanelDrawing]) -> str:
    """Return the words below a plot: what its bars or bands are, its own note, and what was done otherwise than in the paper."""
    every = [series for panel in panels for series in panel.series]
    words = (
        [f"{'Whiskers' if made.plot.bars else 'Bars'} are 95 % intervals."]
        if any(series.bars for series in every)
        else []
    )
    words += ["Bands are 95 % intervals over clients."] if any(series.band for series in every) else []
    words += [made.plot.note] if made.plot.note else []
    return " ".join([*words, *([OTHERWISE + "; ".join(made.notes) + "."] if made.notes else [])])


def undrawn(made: Plotted) -> str:
    """Return what a plot does not show: nothing, cells without a place across, or all of it."""
    if not made.panels:
        why = "these runs kept no curve; runs made anew do" if made.plot.curve else "nothing of it is measured here"
        return f"{made.plot.title}: not drawn, {why}."
    if made.without:
        return f"{made.plot.title}: {made.without} cells have no number for {title_of(made.plot.x)} and are not drawn."
    return ""


def _frame(made: Plotted, every: Sequence[Series]) -> _Frame:
    across = across_of(made, every)
    left, right = (estimates([s for s in every if s.right is side]) for side in (False, True))
    (right if made.plot.second_axis else left).extend(chances(every))
    turned = _turned(across, made)
    height = HEIGHT + (TURNED_BOTTOM - BOTTOM if turned else 0)
    return _Frame(
        across=across,
        left=SHARE
        if made.rates
        else linear(left, zero=not made.plot.curve, cut=bool(made.plot.curve))
        if _is_linear(made)
        else upward(left),
        right=linear(right, zero=True),
        last=WIDTH - (SIDE if made.plot.second_axis else MARGIN),
        height=height,
        floor=height - (TURNED_BOTTOM if turned else BOTTOM),
        rates=made.rates,
        inside=0.0 if across.words or made.plot.curve or made.plot.regions else INSIDE,
        columns=made.plot.bars,
        chance_right=bool(made.plot.second_axis),
    )


def _is_linear(made: Plotted) -> bool:
    return bool(made.plot.curve or made.plot.regions or made.plot.bars or made.plot.chance)


def _turned(across: Across, made: Plotted) -> bool:
    """Return whether the words below must be turned to have room."""
    room = (WIDTH - SIDE - (SIDE if made.plot.second_axis else MARGIN)) / max(len(across.words), 1)
    return any(LETTER * len(word) > room for word in across.words)


def _ticks(
    made: Plotted, every: Sequence[Series], frame: _Frame
) -> tuple[tuple[tuple[float, str], ...], tuple[float, ...], bool]:
    """Return the numbers or words below, the places of the points, and whether the words are turned.

    Of the settings of an axis as many are written as have room; other axes have round numbers.
    """
    across = frame.across
    if across.words:
        spots = tuple((frame.x(across.place(word)), word) for word in across.words)
        return spots, (), _turned(across, made)
    known = sorted({float(point.x) for series in every for point in series.points})
    if made.plot.along or made.plot.curve:
        return tuple((frame.x(at), text) for at, text in across.scale.ticks()), (), False
    written: list[tuple[float, str]] = []
    for x in known:
        at = frame.x(across.place(x))
        if not written or at - written[-1][0] >= max(APART, LETTER * len(numbers.short(x))):
            written.append((at, numbers.short(x)))
    return tuple(written), tuple(frame.x(across.place(x)) for x in known), False


def _names(made: Plotted) -> tuple[str, str, str]:
    """Return the words for the axis below, the left one and the right one."""
    plot = made.plot
    below = plot.across or (RATIO_NAME if plot.regions else title_of(plot.x))
    if not plot.second_axis:
        return below, title_of(plot.y[0]) if len(plot.y) == 1 and plot.lines else "", ""
    left, right = (
        title_of(names[0]) if len(names) == 1 and len(title_of(names[0])) <= SHORT else ""
        for names in (plot.y, plot.second_axis)
    )
    return below, ": ".join(word for word in (left, LINES[0]) if word), ": ".join(w for w in (right, LINES[1]) if w)


def _shades(frame: _Frame) -> tuple[Shade, ...]:
    borders = [0.0, place(GREEN_UP_TO), place(RED_FROM), frame.across.scale.high]
    spots = [frame.x(frame.across.scale.place(at)) for at in borders]
    names = [region.value for region in (Region.GREEN, Region.WHITE, Region.RED)]
    return tuple(Shade(name, a, round(b - a, 1)) for name, a, b in zip(names, spots, spots[1:], strict=False))


def _panel(panel: PlotPanel, names: Sequence[str], frame: _Frame, title: str, curve: bool) -> PanelDrawing:
    several = len(panel.series)
    series = tuple(_drawn(one, names.index(one.name), frame, (i, several), curve) for i, one in enumerate(panel.series))
    said = "; ".join(_said(one, frame.rates and not one.right) for one in panel.series if one.points)
    chance = _chance(panel, frame)
    said = "; ".join(word for word in (said, chance.words if chance else "") if word)
    return PanelDrawing(panel.title, series, chance, f"{title}{f', {panel.title}' if panel.title else ''}: {said}")


def _chance(panel: PlotPanel, frame: _Frame) -> Chance | None:
    several = len(panel.series)
    placings = [_placing(frame, frame.chance_right, _aside(i, several, frame)) for i in range(several)]
    found = [
        (spot(p.x, p.chance), p.chance)
        for spot, series in zip(placings, panel.series, strict=True)
        for p in series.points
        if p.chance is not None
    ]
    return chance_line(found, (SIDE, frame.last), _step(several, frame) / 2)


def _step(several: int, frame: _Frame) -> float:
    """Return how far the points of two lines stand apart at a word below; 0 where there are numbers."""
    words = len(frame.across.words)
    return min(WIDEST if frame.columns else 10.0, 0.7 * (frame.last - SIDE) / words / several) if words else 0.0


def _aside(number: int, several: int, frame: _Frame) -> float:
    """Return how far a line's points stand beside a word below, so that bars do not cover each other."""
    return (number - (several - 1) / 2) * _step(several, frame)


def _placing(frame: _Frame, right: bool, aside: float) -> Placing:
    scale = frame.right if right else frame.left

    def spot(x: float | str, value: float) -> tuple[float, float]:
        return round(frame.x(frame.across.place(x)) + aside, 1), frame.y(scale.place(value))

    return spot


def _drawn(series: Series, number: int, frame: _Frame, stand: tuple[int, int], curve: bool) -> Drawn:
    spot, share = _placing(frame, series.right, _aside(*stand, frame)), frame.rates and not series.right
    spots = [spot(p.x, p.value.value) for p in series.points]
    every, half = math.ceil(len(spots) / SOME_MARKS) if curve else 1, round(0.46 * _step(stand[1], frame), 1)
    return Drawn(
        name=series.name,
        colour=number % COLOURS,
        dashed=series.right,
        symbol=_marker(number, 14, 8),
        path="" if frame.across.words else _path(spots),
        bars="" if curve else "".join(whisker(spot, p) for p in series.points),
        band=band(spot, series.points) if curve else "",
        columns="".join(column(spot, p, half) for p in series.points) if frame.columns else "",
        marks=tuple(
            Mark(_marker(number, *at), f"{series.name}, {in_word(p.x)}: {_says(p.value, share)}")
            for i, (at, p) in enumerate(zip(spots, series.points, strict=True))
            if i % every == 0
        ),
        published=tuple(
            Mark(_marker(number, *spot(x, v)), f"{series.name}, {in_word(x)}: published {_value(v, share)}")
            for x, v in series.published
        ),
    )


def _value(value: float, share: bool) -> str:
    return numbers.percent(value) if share else numbers.number(value)


def _said(series: Series, share: bool) -> str:
    """Return a line in words: its first, last and highest point, or all of them where they stand at words."""
    if any(isinstance(point.x, str) for point in series.points):
        told = ", ".join(f"{_value(point.value.value, share)} at {in_word(point.x)}" for point in series.points)
        return f"{series.name} {told}"
    first, last = series.points[0], series.points[-1]
    top = max(series.points, key=lambda point: point.value.value)
    highest = f", highest {_value(top.value.value, share)} at {numbers.number(float(top.x))}"
    return (
        f"{series.name} from {_says(first.value, share)} at {numbers.number(float(first.x))} "
        f"to {_says(last.value, share)} at {numbers.number(float(last.x))}{highest if top not in (first, last) else ''}"
    )
