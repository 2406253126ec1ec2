"""The numbers of a page: a section per axis with table and curves, the table of all cells, recovery over thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.core.record import Cell
from leakscope.metrics.interval import Estimate
from leakscope.metrics.recovery import THRESHOLDS
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.report.cells import ATTACK, axes_of, axis_label, axis_value_text, families, holds_text, name_of
from leakscope.report.charts import Line, Panel
from leakscope.report.page_data import Section
from leakscope.report.sheet import Flags, Groups, Sheet, clusters, rates
from leakscope.report.tables import Row, Table, is_numeric_axis, tabulate

MOST_ROWS = 400
MOST_LINES = 6
THRESHOLD_AXIS = "largest MSE that counts as recovered"
THRESHOLD_NOTE = (
    "How many inputs count as recovered follows the rule. By MSE alone is the recovery rate of the Mixing paper; by both, a picture "
    f"must also have an SSIM of at least {DEFAULT_RULE.ssim:g}: the rule of this page is that curve at an MSE of {DEFAULT_RULE.mse:g}."
)

Label = Callable[[str], str]  # name of an axis -> label


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
    _Measure("Mean ROUGE-1", False, True, lambda row: row.learned.get("rouge1")),
)


def labels_of(sheet: Sheet) -> Label:
    """Return the function that maps the name of an axis to its label."""
    return lambda name: axis_label(name, sheet.cells)


def sections_of(sheet: Sheet) -> tuple[Section, ...]:
    """Return a section per axis, family by family; one section if nothing varies."""
    return tuple(
        section
        for family in families(sheet.cells)
        for axis in (tuple(axes_of(family)) or (ATTACK,))
        if (section := _section(sheet, axis, family)).rows
    )


def every_cell(sheet: Sheet, table: Table) -> Section | None:
    """Return the section of all cells, None if it would repeat another or be too long."""
    label = labels_of(sheet)
    pools = any(len(axes_of(family)) > 1 for family in families(sheet.cells))
    if not pools or len(table.rows) > MOST_ROWS:
        return None
    axes = tuple((axis, label(axis)) for axis in table.axes if axis != ATTACK)
    return Section(title="Every setting", note="One row for each, none pooled.", axes=axes, rows=table.rows)


def panels_of(sheet: Sheet, axis: str, cells: Sequence[Cell], label: Label) -> tuple[Panel, ...]:
    """Return the panels of a numeric axis for a family of cells: a line per attack, baselines as levels."""
    split = split_lines(cells, axis)
    table = tabulate(sheet, (axis, *split), cells)
    panels = (_panel(measure, table, axis, label) for measure in MEASURES)
    return tuple(panel for panel in panels if panel.lines)


def split_lines(cells: Sequence[Cell], axis: str) -> tuple[str, ...]:
    """Return the axes besides the attack that split the lines along `axis`: as many as stay readable."""
    split: list[str] = []
    lines = len({name_of(cell) for cell in cells})
    for name, values in axes_of(cells).items():
        if name not in (axis, ATTACK) and len(values) > 1 and lines * len(values) <= MOST_LINES:
            split.append(name)
            lines *= len(values)
    return tuple(split)


def thresholds_of(sheet: Sheet, label: Label) -> Section | None:
    """Return recovery over thresholds, one line per attack (and per value of other axes if readable); None without samples."""
    if not bool(sheet.samples.any()) or holds_text(sheet.cells):
        return None
    names = _line_names(sheet.cells, label)
    lines = list(dict.fromkeys(names))
    baseline = {name: cell.baseline for name, cell in zip(names, sheet.cells, strict=True)}
    group = np.array([lines.index(name) for name in names], dtype=np.int64)[sheet.cell]
    groups = Groups(group, clusters(sheet, group), len(lines))
    finite, ssim = sheet.flags("finite"), sheet.floats("ssim")
    panels = [_threshold_panel("Recovered by MSE alone", sheet, groups, baseline, finite)]
    if bool((~np.isnan(ssim) & sheet.samples).any()):
        alike = finite & ((ssim >= DEFAULT_RULE.ssim) | np.isnan(ssim))
        panels.append(_threshold_panel("Recovered by MSE and SSIM", sheet, groups, baseline, alike))
    return Section(title="Over thresholds", note=THRESHOLD_NOTE, axes=(), rows=(), panels=tuple(panels))


def _section(sheet: Sheet, axis: str, family: Sequence[Cell]) -> Section:
    label = labels_of(sheet)
    table = tabulate(sheet, (axis,), family)
    numeric = axis != ATTACK and is_numeric_axis(table)
    notes = [_pooled("Rows pool", table.pooled, label)]
    if len(table.rows) > MOST_ROWS:
        notes.append(f"The first {MOST_ROWS} of {len(table.rows):,} rows are shown; leakscope show has them all.")
    if numeric:
        split = split_lines(family, axis)
        notes.append(_pooled("Curves pool", [name for name in table.pooled if name not in split], label))
    return Section(
        title=f"By {label(axis)}",
        note=" ".join(note for note in notes if note),
        axes=() if axis == ATTACK else ((axis, label(axis)),),
        rows=table.rows[:MOST_ROWS],
        panels=panels_of(sheet, axis, family, label) if numeric else (),
    )


def _pooled(subject: str, names: Sequence[str], label: Label) -> str:
    return f"{subject} over {', '.join(label(name) for name in names)}." if names else ""


def _panel(measure: _Measure, table: Table, axis: str, label: Label) -> Panel:
    points: dict[tuple[bool, str], list[tuple[float, Estimate]]] = {}
    levels: list[tuple[str, Estimate]] = []
    for row in table.rows:
        value = measure.read(row)
        if value is None or not math.isfinite(value.value):
            continue
        at = row.values.get(axis)
        name = _line_name(row, table.axes[1:], label)
        if isinstance(at, int | float) and not isinstance(at, bool):
            points.setdefault((row.baseline, name), []).append((float(at), value))
        elif row.baseline:
            levels.append((name, value))
    lines = []
    for (baseline, name), pairs in points.items():
        ordered = sorted(pairs, key=lambda pair: pair[0])
        lines.append(Line(name, tuple(at for at, _ in ordered), tuple(value for _, value in ordered), baseline))
    return Panel(measure.title, label(axis), measure.share, measure.bounded, tuple(lines), tuple(levels))


def _line_name(row: Row, split: Sequence[str], label: Label) -> str:
    parts = [f"{label(name)} {axis_value_text(row.values[name])}" for name in split if name in row.values]
    return ", ".join([row.attack, *parts])


def _threshold_panel(title: str, sheet: Sheet, groups: Groups, baseline: dict[str, bool], allowed: Flags) -> Panel:
    error = sheet.floats("mse")
    shares = [rates(groups, (error <= most) & allowed, sheet.samples) for most in THRESHOLDS]
    lines = [
        Line(name, THRESHOLDS, tuple(at_threshold[place] for at_threshold in shares), is_baseline)
        for place, (name, is_baseline) in enumerate(baseline.items())
        if shares[0][place].n
    ]
    return Panel(title, THRESHOLD_AXIS, True, True, tuple(lines))


def _line_names(cells: Sequence[Cell], label: Label) -> list[str]:
    """Return the line of each cell: its attack and a few axes; other axes are pooled, and all axes of baselines."""
    split = split_lines([cell for cell in cells if not cell.baseline], "")

    def line(cell: Cell) -> str:
        shown = () if cell.baseline else tuple(axis for axis in split if axis in cell.axes)
        return ", ".join([name_of(cell), *(f"{label(axis)} {axis_value_text(cell.axes[axis])}" for axis in shown)])

    return [line(cell) for cell in cells]
