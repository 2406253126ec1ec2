"""The comparison of an item as a table of text: a row of printed numbers, and below it one for each measured column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakscope.core.record import Plain
from leakscope.report.cells import axis_value_text as say
from leakscope.report.numbers import number, number_interval, percent, percent_interval
from leakscope_papers.comparing import BY_CONTENT, HIGHER, LOWER, NO_SUCCESS, NOT_RECORDED, Line, Measured, Verdict
from leakscope_papers.measure_names import cut, title_of
from leakscope_papers.measures import RATES, Value
from leakscope_papers.published import PrintedRow
from leakscope_papers.results import Result

PUBLISHED = "published"
APART = (HIGHER, LOWER, BY_CONTENT, NO_SUCCESS)


@dataclass(frozen=True, slots=True)
class Entry:
    """One number as text: value, interval, what it is over, comparison with print, and likely reason."""

    value: str = ""
    interval: str = ""
    over: str = ""
    verdict: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GridRow:
    """The printed numbers of a place, or those of one column; `place` is empty below the first row of a place."""

    place: tuple[str, ...]
    who: str
    entries: tuple[Entry, ...]
    n: str = ""
    outcomes: str = ""

    @property
    def printed(self) -> bool:
        """Return whether the row is the paper's."""
        return self.who == PUBLISHED


@dataclass(frozen=True, slots=True)
class Grid:
    """All rows of an item. `same` are the constant axes, as text; `axes` head the place, `measures` the entries."""

    rows: tuple[GridRow, ...]
    measures: tuple[str, ...]
    axes: tuple[str, ...]
    same: str


def grid_of(result: Result) -> Grid:
    """Return the comparison of an item as text."""
    lines = result.comparison.lines
    axes = tuple(dict.fromkeys(axis for line in lines for axis in line.where))
    fixed = {axis for axis in axes if len({repr(line.where.get(axis)) for line in lines}) == 1}
    varied = tuple(axis for axis in axes if axis not in fixed)
    names = tuple(dict.fromkeys((*result.item.measures, *result.item.printed.measures)))
    same = ", ".join(f"{axis} {say(lines[0].where[axis])}" for axis in axes if axis in fixed) if lines else ""
    readings = len(dict.fromkeys(column.reading for column in result.comparison.columns))
    mixed = len({bool(cell.settings) for cell in result.cells}) > 1
    rows = tuple(row for line in lines for row in _rows(line, varied, names, readings, mixed=mixed))
    return Grid(rows, tuple(title_of(name) for name in names), varied, same)


def _rows(line: Line, axes: Sequence[str], names: Sequence[str], readings: int, *, mixed: bool) -> list[GridRow]:
    place = tuple(_word(line.where, axis) for axis in axes)
    rows: list[GridRow] = []
    if line.printed:
        entries = tuple(_printed(line.printed.get(name), line, name) for name in names)
        rows.append(GridRow(place, PUBLISHED, entries))
    for cell, column in _merged(line.measured, readings):
        who = f"{column}, {NOT_RECORDED}" if mixed and not cell.settings else column
        rows.append(_measured(cell, who, line, place if not rows else ("",) * len(place), names))
    return rows


def _merged(cells: Sequence[Measured], readings: int) -> list[tuple[Measured, str]]:
    """Return the cells with their column's name; a cell shared by several readings, such as one without a defence, once."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for cell in cells:
        groups.setdefault((cell.column.attacker, cell.cell or cell.column.reading), []).append(cell)
    merged = []
    for same in groups.values():
        labels = list(dict.fromkeys(cell.column.reading for cell in same if cell.column.reading))
        reading = "every reading" if len(labels) == readings > 1 else " / ".join(labels)
        words = (reading, same[0].column.attacker, same[0].note)
        merged.append((same[0], ", ".join(word for word in words if word) or "measured"))
    return merged


def _word(where: Mapping[str, Plain], axis: str) -> str:
    return say(where[axis]) if axis in where else ""


def _printed(row: PrintedRow | None, line: Line, name: str) -> Entry:
    if row is None:
        return Entry()
    value = "lost in the source" if row.value is None else in_words(name, row.value)
    verdicts = [verdict for (_, measure), verdict in line.verdicts.items() if measure == name]
    if not verdicts or not all(verdict.word.startswith("not ") for verdict in verdicts):
        return Entry(value)
    return Entry(value, verdict=verdicts[0].word, reason=verdicts[0].reason)


def _measured(cell: Measured, who: str, line: Line, place: tuple[str, ...], names: Sequence[str]) -> GridRow:
    outcomes = ", ".join(f"{n} {name}" for name, n in cell.outcomes.items())
    entries = tuple(
        entry_of(name, cell.values.get(name), line.verdicts.get((cell.column.title, name), Verdict("")))
        for name in names
    )
    return GridRow(place, who, entries, str(cell.trials), outcomes)


def entry_of(name: str, value: Value | None, verdict: Verdict = Verdict("")) -> Entry:  # noqa: B008  frozen
    """Return a measured number as text, with its verdict."""
    if value is None:
        return Entry()
    if not value.has_number:
        return Entry("none", "", value.over, verdict.word, verdict.reason)
    kept = cut(name, value.estimate)
    interval = percent_interval(kept) if name in RATES else number_interval(kept)
    return Entry(in_words(name, value.estimate.value), interval, value.over, verdict.word, verdict.reason)


def in_words(name: str, value: float) -> str:
    """Return a number as text, rates in per cent."""
    if not math.isfinite(value):
        return "none"
    return percent(value) if name in RATES else number(value)


def reasons_of(result: Result) -> dict[str, list[str]]:
    """Return every likely reason of a difference -> the numbers it explains, as text."""
    axes = grid_of(result).axes
    reasons: dict[str, list[str]] = {}
    for line in result.comparison.lines:
        place = ", ".join(f"{axis} {say(line.where[axis])}" for axis in axes if axis in line.where)
        for (_, measure), verdict in line.verdicts.items():
            if verdict.reason and verdict.word in APART:
                numbers = reasons.setdefault(verdict.reason, [])
                numbers += [words] if (words := f"{title_of(measure)} at {place}") not in numbers else []
    return reasons
