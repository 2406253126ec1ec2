"""Curves of a sweep: each measure along a numeric axis, a line for each attack (and more), baselines as levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leakscope.core.record import Cell
from leakscope.metrics.interval import Estimate
from leakscope.report.sheet import ATTACK, Sheet, axes_of, name_of, say
from leakscope.report.tables import Row, Table, tabulate

MOST_LINES = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: estimates at numbers that rise."""

    name: str
    at: tuple[float, ...]
    values: tuple[Estimate, ...]
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure along one axis. `levels` do not depend on the axis.

    A `share` is drawn from 0 to 100 %; what is not may take a log scale, unless it is `bounded` by 1. So may the axis, unless
    it is `linear` (rounds, which are a time).
    """

    title: str
    axis: str
    share: bool
    bounded: bool
    lines: tuple[Line, ...]
    levels: tuple[tuple[str, Estimate], ...] = ()
    linear: bool = False

    def names(self) -> list[str]:
        """Return the names of lines and levels."""
        return [line.name for line in self.lines] + [name for name, _ in self.levels]


@dataclass(frozen=True, slots=True)
class _Measure:
    title: str
    share: bool
    bounded: bool
    read: Callable[[Row], Estimate | None]


MEASURES = (
    _Measure("Content recovered", True, True, lambda row: row.content),
    _Measure("Mean MSE", False, False, lambda row: row.mse),
    _Measure("Mean SSIM", False, True, lambda row: row.ssim),
)


def split_lines(cells: Sequence[Cell], axis: str) -> tuple[str, ...]:
    """Return the axes by which the lines along `axis` are told apart, beside the attack: as many as stay readable."""
    chosen: list[str] = []
    lines = len({name_of(cell) for cell in cells})
    for name, values in axes_of(cells).items():
        if name not in (axis, ATTACK) and len(values) > 1 and lines * len(values) <= MOST_LINES:
            chosen.append(name)
            lines *= len(values)
    return tuple(chosen)


def panels(sheet: Sheet, axis: str, cells: Sequence[Cell], label: Callable[[str], str]) -> tuple[Panel, ...]:
    """Return the panels of a numeric axis for a family of cells; `label` puts the name of an axis into words."""
    split = split_lines(cells, axis)
    table = tabulate(sheet, (axis, *split), cells)
    found = (_panel(measure, table, axis, label) for measure in MEASURES)
    return tuple(panel for panel in found if panel.lines)


def _panel(measure: _Measure, table: Table, axis: str, label: Callable[[str], str]) -> Panel:
    lines: dict[tuple[bool, str], list[tuple[float, Estimate]]] = {}
    levels: list[tuple[str, Estimate]] = []
    for row in table.rows:
        value = measure.read(row)
        if value is None or not math.isfinite(value.value):
            continue
        at = row.values.get(axis)
        name = _name(row, table.axes[1:], label)
        if isinstance(at, int | float) and not isinstance(at, bool):
            lines.setdefault((row.baseline, name), []).append((float(at), value))
        elif row.baseline:
            levels.append((name, value))
    drawn = (
        Line(
            name, tuple(x for x, _ in sorted(points, key=_first)), tuple(v for _, v in sorted(points, key=_first)), base
        )
        for (base, name), points in lines.items()
    )
    return Panel(measure.title, label(axis), measure.share, measure.bounded, tuple(drawn), tuple(levels))


def _first(point: tuple[float, Estimate]) -> float:
    return point[0]


def _name(row: Row, split: Sequence[str], label: Callable[[str], str]) -> str:
    parts = [f"{label(name)} {say(row.values[name])}" for name in split if name in row.values]
    return ", ".join([row.attack, *parts])
