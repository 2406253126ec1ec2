"""Items on table rows: how often each column came back, attack by attack, with the baselines beside them (docs/tabular.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.experiments.papers.results import Result
from leakscope.metrics.interval import Estimate
from leakscope.metrics.tabular import TOLERANCE
from leakscope.report.numbers import percent, percent_interval
from leakscope.report.tables_of_rows import RowTable, row_tables
from leakscope.store import Run

VALUES, ROWS = "values right", "rows right"
RULE = (
    f"A word is right when it is the same, a number when it lies within {TOLERANCE:.0%} of its column's range. A column that is "
    "nearly always the same is right without any attack: read the baselines beside it."
)


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """The columns of one part: a head for each attack and baseline (with its n), a row for each column of the table.

    A row is the column's name, and (share, interval) under each head.
    """

    part: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def columns_of(result: Result) -> tuple[ColumnTable, ...]:
    """Return a table for every part of an item that attacks rows; none for pictures, programs, or where the set is not here."""
    runs = {name: path for name, path in result.runs.items() if Run.exists(path)}
    made = {name: row_tables(Run.open(path), examples=0) for name, path in runs.items()}
    return tuple(_table(name, tables) for name, tables in made.items() if tables)


def _table(part: str, tables: Sequence[RowTable]) -> ColumnTable:
    heads = tuple(
        f"{table.name}{' (baseline)' if table.baseline else ''}, n = {table.scores.row.n}" for table in tables
    )
    lines = {VALUES: [table.scores.values for table in tables], ROWS: [table.scores.row for table in tables]}
    lines |= {name: [table.scores.columns[name] for table in tables] for name in tables[0].columns}
    return ColumnTable(part, heads, tuple((name, tuple(map(_word, found))) for name, found in lines.items()))


def _word(estimate: Estimate) -> tuple[str, str]:
    return percent(estimate.value), percent_interval(estimate)
