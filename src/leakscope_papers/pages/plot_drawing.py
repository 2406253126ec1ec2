"""The plots of an item as SVG drawings: panels on the same scales, one or two axes, 95 % bars or bands, chance level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from leakscope.report import charts, numbers
from leakscope_papers.characteristics.characteristic import Region
from leakscope_papers.characteristics.drawing import Shade, region_shades
from leakscope_papers.measure_names import title_of
from leakscope_papers.pages.plot_axes import Axes, axes_of, axis_titles, position_text, ticks_across
from leakscope_papers.pages.plots import PlotPanel, Plotted, Point, Series

SOME_MARKS = 6
WIDEST = 40.0  # a column
OTHERWISE = "Differences from the paper: "
REGIONS = {
    Region.GREEN.value: "green: the perturbation is above the gradient",
    Region.WHITE.value: "white: between",
    Region.RED.value: "red: the perturbation is below a tenth of the gradient",
}
ABOVE, BELOW, HIGHEST = 4, 13, 44.0  # where the word "chance" stands beside its line; above it from this height on

Placing = Callable[[float | str, float], charts.Spot]


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    """A drawn line: colour number, whether dashed (right axis), path, bars, band, columns, points, open marks for printed numbers."""

    name: str
    colour: int
    dashed: bool
    symbol: str
    path: str
    bars: str
    band: str
    columns: str
    marks: tuple[charts.Mark, ...]
    published: tuple[charts.Mark, ...]


@dataclass(frozen=True, slots=True)
class Chance:
    """The chance level: its line, the position of its label, and a description."""

    path: str
    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class PanelDrawing:
    """A drawn panel: its title, lines, chance level and a description."""

    title: str
    words: str
    chance: Chance | None
    series: tuple[DrawnSeries, ...]


@dataclass(frozen=True, slots=True)
class PlotDrawing:
    """A drawn plot: ticks, regions, axis titles, panels, legend, and the frame of each panel."""

    title: str
    note: str
    across: tuple[charts.Tick, ...]
    known: tuple[float, ...]
    left: tuple[charts.Tick, ...]
    right: tuple[charts.Tick, ...]
    names: tuple[str, str, str]
    shades: tuple[Shade, ...]
    turned: bool
    panels: tuple[PanelDrawing, ...]
    key: tuple[DrawnSeries, ...]
    published: bool
    broken: float | None
    frame: charts.Frame


def draw(plotted: Plotted) -> PlotDrawing:
    """Return the drawing of a plot that has panels; all panels share their scales."""
    plot, series = plotted.plot, [one for panel in plotted.panels for one in panel.series]
    axes = axes_of(plotted, series)
    frame, scale = axes.frame, axes.across.scale
    names = list(dict.fromkeys(one.name for one in series))
    panels = tuple(_panel(panel, names, axes, plot.title, bool(plot.curve)) for panel in plotted.panels)
    drawn = {one.name: one for panel in panels for one in panel.series}
    ticks, known = ticks_across(plotted, series, axes)
    return PlotDrawing(
        title=plot.title,
        note=_note(plotted, panels),
        across=ticks,
        known=known,
        left=tuple((frame.y(at), charts.tick_text(text, plotted.rates)) for at, text in axes.left.ticks()),
        right=tuple((frame.y(at), text) for at, text in axes.right.ticks()) if plot.second_axis else (),
        names=axis_titles(plotted),
        shades=region_shades(frame, scale) if plot.regions else (),
        turned=axes.turned,
        panels=panels,
        key=tuple(drawn[name] for name in names),
        published=any(one.published for one in series),
        broken=frame.x(0.055) if scale.zero and not axes.across.words else None,
        frame=frame,
    )


def undrawn(plotted: Plotted) -> str:
    """Return why a plot or a part of it is not drawn; "" if all of it is."""
    plot = plotted.plot
    if not plotted.panels:
        why = "these runs kept no curve; run them again" if plot.curve else "nothing of it is measured here"
        return f"{plot.title}: not drawn, {why}."
    if plotted.without:
        return f"{plot.title}: {plotted.without} cells have no number for {title_of(plot.x)} and are not drawn."
    return ""


def _note(plotted: Plotted, panels: Sequence[PanelDrawing]) -> str:
    """Return the note below a plot: the meaning of bars or bands, its own note, and deviations from the paper."""
    series = [one for panel in panels for one in panel.series]
    bars = "Whiskers" if plotted.plot.bars else "Bars"
    words = [f"{bars} are 95 % intervals."] if any(one.bars for one in series) else []
    words += ["Bands are 95 % intervals over clients."] if any(one.band for one in series) else []
    words += [plotted.plot.note] if plotted.plot.note else []
    return " ".join([*words, *([OTHERWISE + "; ".join(plotted.notes) + "."] if plotted.notes else [])])


def _panel(panel: PlotPanel, names: Sequence[str], axes: Axes, title: str, curve: bool) -> PanelDrawing:
    step = _step(len(panel.series), axes)
    offsets = [(i - (len(panel.series) - 1) / 2) * step for i in range(len(panel.series))]
    series = tuple(
        _series(one, names.index(one.name), axes, aside, step, curve)
        for one, aside in zip(panel.series, offsets, strict=True)
    )
    chance = _chance(panel, axes, offsets, step / 2)
    words = [_describe(one, axes.rates and not one.right) for one in panel.series if one.points]
    words += [chance.words] if chance else []
    name = f"{title}{f', {panel.title}' if panel.title else ''}"
    return PanelDrawing(panel.title, f"{name}: {'; '.join(words)}", chance, series)


def _step(lines: int, axes: Axes) -> float:
    """Return the distance between the points of two lines at the same word; 0 on an axis of numbers."""
    words, frame = len(axes.across.words), axes.frame
    widest = WIDEST if axes.columns else 10.0
    return min(widest, 0.7 * (frame.last - frame.first) / words / lines) if words else 0.0


def _series(series: Series, number: int, axes: Axes, aside: float, step: float, curve: bool) -> DrawnSeries:
    spot: Placing = partial(axes.spot, right=series.right, aside=aside)
    share = axes.rates and not series.right
    spots = [spot(p.x, p.value.value) for p in series.points]
    every, half = math.ceil(len(spots) / SOME_MARKS) if curve else 1, round(0.46 * step, 1)
    return DrawnSeries(
        name=series.name,
        colour=number % charts.COLOURS,
        dashed=series.right,
        symbol=charts.legend_marker(number),
        path="" if axes.across.words else charts.path(spots),
        bars="" if curve else "".join(_bar(spot, p) for p in series.points),
        band=_band(spot, series.points) if curve else "",
        columns="".join(_column(spot, p, half) for p in series.points) if axes.columns else "",
        marks=tuple(
            charts.Mark(
                charts.marker(number, *at),
                f"{series.name}, {position_text(p.x)}: {charts.estimate_text(p.value, share)}",
            )
            for i, (at, p) in enumerate(zip(spots, series.points, strict=True))
            if i % every == 0
        ),
        published=tuple(
            charts.Mark(
                charts.marker(number, *spot(x, v)),
                f"{series.name}, {position_text(x)}: published {charts.value_text(v, share)}",
            )
            for x, v in series.published
        ),
    )


def _bar(spot: Placing, point: Point) -> str:
    """Return the bar of a point's interval; "" without one."""
    if not (math.isfinite(point.value.low) and math.isfinite(point.value.high)):
        return ""
    (x, low), (_, high) = spot(point.x, point.value.low), spot(point.x, point.value.high)
    return f"M{x:g} {low:g}V{high:g}M{x - 2.5:g} {low:g}h5M{x - 2.5:g} {high:g}h5"


def _band(spot: Placing, points: Sequence[Point]) -> str:
    """Return the outline of the intervals; "" for fewer than two."""
    known = [p for p in points if math.isfinite(p.value.low)]
    if len(known) < 2:
        return ""
    return charts.band([spot(p.x, p.value.high) for p in known], [spot(p.x, p.value.low) for p in known])


def _column(spot: Placing, point: Point, half: float) -> str:
    """Return the column from 0 to the point."""
    (x, top), (_, foot) = spot(point.x, point.value.value), spot(point.x, 0.0)
    return f"M{x - half:g} {foot:g}V{top:g}h{2 * half:g}V{foot:g}Z"


def _chance(panel: PlotPanel, axes: Axes, offsets: Sequence[float], half: float) -> Chance | None:
    """Return the line of chance: level if it is the same everywhere, with `half` a dash of that half-width at each word."""
    spots = sorted(
        {
            axes.spot(p.x, p.chance, right=axes.chance_right, aside=aside): p.chance
            for aside, series in zip(offsets, panel.series, strict=True)
            for p in series.points
            if p.chance is not None
        }.items()
    )
    if not spots:
        return None
    (x, y), last = spots[-1]
    first = spots[0][1]
    if half:
        line, x = "".join(f"M{at - half:g} {up:g}h{2 * half:g}" for (at, up), _ in spots), x + half
    elif len({round(value, 9) for _, value in spots}) == 1:
        line, x = charts.path([(axes.frame.first, y), (axes.frame.last, y)]), axes.frame.last - ABOVE
    else:
        line = charts.path([spot for spot, _ in spots])
    level = math.isclose(first, last)
    words = numbers.number(last) if level else f"from {numbers.number(first)} to {numbers.number(last)}"
    return Chance(line, round(x, 1), y - ABOVE if y > HIGHEST else y + BELOW, f"chance {words}")


def _describe(series: Series, share: bool) -> str:
    """Return a description of a line: its first, last and highest point, or all points at words."""
    if any(isinstance(point.x, str) for point in series.points):
        words = ", ".join(f"{charts.value_text(p.value.value, share)} at {position_text(p.x)}" for p in series.points)
        return f"{series.name} {words}"
    first, last = series.points[0], series.points[-1]
    top = max(series.points, key=lambda point: point.value.value)
    highest = f", highest {charts.value_text(top.value.value, share)} at {numbers.number(float(top.x))}"
    return (
        f"{series.name} from {charts.estimate_text(first.value, share)} at {numbers.number(float(first.x))} "
        f"to {charts.estimate_text(last.value, share)} at {numbers.number(float(last.x))}{highest if top not in (first, last) else ''}"
    )
