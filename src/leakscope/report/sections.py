"""The numbers of a page: a section for each axis, with its table and its curves, and the table of all cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leakscope.core.record import Cell
from leakscope.report.axes import axis_label
from leakscope.report.curves import panels, split_lines
from leakscope.report.page_data import Section
from leakscope.report.sheet import ATTACK, Sheet, axes_of, families
from leakscope.report.tables import Table, is_numeric_axis, tabulate

MOST_ROWS = 400


def labels_of(sheet: Sheet) -> Callable[[str], str]:
    """Return the function that puts the name of an axis into words."""
    return lambda name: axis_label(name, sheet.cells)


def sections_of(sheet: Sheet) -> tuple[Section, ...]:
    """Return a section for every axis, family by family; one section where nothing varies."""
    return tuple(
        section
        for family in families(sheet.cells)
        for axis in (tuple(axes_of(family)) or (ATTACK,))
        if (section := _section(sheet, axis, family)).rows
    )


def every_cell(sheet: Sheet, table: Table) -> Section | None:
    """Return the section of all cells, None where it would say nothing new or be too long to read."""
    label = labels_of(sheet)
    pools = any(len(axes_of(family)) > 1 for family in families(sheet.cells))
    if not pools or len(table.rows) > MOST_ROWS:
        return None
    axes = tuple((axis, label(axis)) for axis in table.axes if axis != ATTACK)
    return Section(title="Every setting", note="One row for each, none pooled.", axes=axes, rows=table.rows)


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
        panels=panels(sheet, axis, family, label) if numeric else (),
    )


def _pooled(who: str, names: Sequence[str], label: Callable[[str], str]) -> str:
    return f"{who} over {', '.join(label(name) for name in names)}." if names else ""
