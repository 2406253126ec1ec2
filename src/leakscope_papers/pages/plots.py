"""The plots of an item: its measured cells sorted into panels and lines, beside printed numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope.report.cells import axis_value_text
from leakscope_papers.comparing import Measured
from leakscope_papers.measure_names import title_of
from leakscope_papers.measures import RATES, value_of
from leakscope_papers.naming import meets
from leakscope_papers.plots import ATTACKER, READING, Plot
from leakscope_papers.results import Result

Place = Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class Point:
    """One point: its position (a number or a word) and the measured value; `order` is its position on the line."""

    x: float | str
    value: Estimate
    order: float
    chance: float | None = None  # chance level, if the plot shows it


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel, on the `right` axis or the left; `published` are printed numbers as (x, value)."""

    name: str
    right: bool
    points: tuple[Point, ...]
    published: tuple[tuple[float | str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One panel: what its cells share and those of other panels do not, and its lines."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Plotted:
    """A plot with its numbers, and its deviations from the paper (`notes`)."""

    plot: Plot
    panels: tuple[PlotPanel, ...]
    notes: tuple[str, ...] = ()
    without: int = 0  # cells left out because they have no number for the x axis

    @property
    def rates(self) -> bool:
        """Return whether the left axis is a share of 100 %."""
        return bool(self.plot.y) and all(name in RATES for name in self.plot.y)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A point before sorting: its place, its line's measure, its cell's note, and whether it is printed."""

    place: Place
    measure: str
    point: Point
    note: str = ""
    printed: bool = False


def plotted(result: Result) -> tuple[Plotted, ...]:
    """Return the plots of an item in the order of its file; one with nothing to draw has no panels."""
    return tuple(_curves(plot, result) if plot.curve else _cells(plot, result) for plot in result.item.plots)


def _cells(plot: Plot, result: Result) -> Plotted:
    spots: list[_Spot] = []
    without = 0
    for cell in result.cells:
        place = _place(cell)
        measures = [
            name for name in (*plot.y, *plot.second_axis) if name in cell.values and cell.values[name].has_number
        ]
        if not measures or not meets(place, plot.where):
            continue
        at = _across(plot, cell)
        without += at is None
        if at is not None:
            order, chance = _order(place.get(plot.points)), _mean(cell, plot.chance)
            spots += [
                _Spot(place, name, Point(at, cell.values[name].estimate, order, chance), cell.note) for name in measures
            ]
    return Plotted(plot, _panels(plot, spots, list(_printed(plot, result))), _notes(spots), without)


def _curves(plot: Plot, result: Result) -> Plotted:
    spots = [
        _Spot(_place(cell), plot.curve, Point(x, value_of(plot.curve, numbers).estimate, x), cell.note)
        for cell in result.cells
        if plot.curve in cell.curves and meets(_place(cell), plot.where)
        for x, numbers in cell.curves[plot.curve].places()
    ]
    known = [spot for spot in spots if math.isfinite(spot.point.value.value)]
    return Plotted(plot, _panels(plot, known, []), _notes(known))


def _notes(spots: Sequence[_Spot]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(spot.note for spot in spots if spot.note))


def _place(cell: Measured) -> dict[str, Plain]:
    return {**cell.where, READING: cell.column.reading, ATTACKER: cell.column.attacker}


def _across(plot: Plot, cell: Measured) -> float | str | None:
    """Return the x position of a cell: the value of the axis, or the measure; None if there is no such number."""
    return _mean(cell, plot.x) if plot.along else _as_across(plot, cell.where.get(plot.x))


def _mean(cell: Measured, name: str) -> float | None:
    value = cell.values.get(name)
    return value.estimate.value if value is not None and value.has_number else None


def _as_across(plot: Plot, value: Plain) -> float | str | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and not plot.bars else axis_value_text(value)


def _order(value: Plain) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _printed(plot: Plot, result: Result) -> Iterator[_Spot]:
    """Yield the printed numbers that a column is judged by, at that column's place."""
    columns = {column.title: column for column in result.comparison.columns}
    for line in result.comparison.lines:
        for title, name in line.verdicts:
            value, column = line.printed[name].value, columns[title]
            place = {**line.where, READING: column.reading, ATTACKER: column.attacker}
            if name not in (*plot.y, *plot.second_axis) or value is None or not meets(place, plot.where):
                continue
            across = line.printed[plot.x].value if plot.x in line.printed else None
            at = across if plot.along else _as_across(plot, line.where.get(plot.x))
            if at is not None:
                yield _Spot(place, name, Point(at, Estimate(value, math.nan, math.nan, 0, 0), 0.0), printed=True)


def _panels(plot: Plot, spots: Sequence[_Spot], printed: Sequence[_Spot]) -> tuple[PlotPanel, ...]:
    """Return the panels with a measured point, in the order of the cells."""
    split = apart(plot, [spot.place for spot in (*spots, *printed)])
    panels: dict[str, dict[tuple[str, str], list[_Spot]]] = {}
    for spot in (*spots, *printed):
        title = _title(spot.place, split)
        if spot.printed and title not in panels:
            continue
        key = (_name(plot, spot), spot.measure)
        panels.setdefault(title, {}).setdefault(key, []).append(spot)
    alike = len({spot.note for spot in spots}) < 2
    return tuple(
        PlotPanel(
            title if alike else _noted(title, [spot for group in lines.values() for spot in group if not spot.printed]),
            tuple(_series(name, measure in plot.second_axis, group) for (name, measure), group in lines.items()),
        )
        for title, lines in panels.items()
    )


def _noted(title: str, spots: Sequence[_Spot]) -> str:
    """Return the title of a panel with the note that all its cells share."""
    notes = {spot.note for spot in spots}
    return f"{title} ({notes.pop()})" if len(notes) == 1 and "" not in notes else title


def apart(plot: Plot, places: Sequence[Place]) -> tuple[str, ...]:
    """Return the axes that make panels: those on which cells differ that have the same points and lines."""
    used = (plot.points, *plot.lines)
    groups: dict[tuple[str, ...], list[Place]] = {}
    for place in places:
        groups.setdefault(tuple(repr(place.get(axis)) for axis in used), []).append(place)
    last = (READING, ATTACKER)
    axes = dict.fromkeys((*(axis for place in places for axis in place if axis not in (*used, *last)), *last))
    return tuple(
        axis
        for axis in axes
        if axis not in used and any(len({repr(place.get(axis)) for place in group}) > 1 for group in groups.values())
    )


def _title(place: Place, split: Sequence[str]) -> str:
    return ", ".join(_word(axis, place[axis]) for axis in split if place.get(axis) not in (None, ""))


def _word(axis: str, value: Plain) -> str:
    if axis == READING:
        return axis_value_text(value)
    return f"{axis.replace('_', ' ')} {axis_value_text(value)}"


def _name(plot: Plot, spot: _Spot) -> str:
    several = len(plot.y) + len(plot.second_axis) > 1 or not plot.lines
    words = [title_of(spot.measure)] if several else []
    words += [_word(axis, spot.place[axis]) for axis in plot.lines if spot.place.get(axis) not in (None, "")]
    return ", ".join(words) or title_of(spot.measure)


def _series(name: str, right: bool, spots: Sequence[_Spot]) -> Series:
    points = sorted((spot.point for spot in spots if not spot.printed), key=lambda point: point.order)
    published = dict.fromkeys((spot.point.x, spot.point.value.value) for spot in spots if spot.printed)
    return Series(name, right, tuple(points), tuple(published))
