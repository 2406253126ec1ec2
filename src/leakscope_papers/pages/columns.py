"""Items on table rows: how often each column was recovered, by attack, beside the baselines (docs/explanation/tabular.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakscope.metrics.interval import Estimate
from leakscope.metrics.tabular import TOLERANCE
from leakscope.report.numbers import percent, percent_interval
from leakscope.report.row_tables import RowTable, row_tables
from leakscope.store import Run
from leakscope_papers.records import ColumnTable
from leakscope_papers.results import Result

VALUES, ROWS = "values right", "rows right"
ROW_RANK = 2  # N x F
RULE = (
    f"A word is right when it is the same, a number when it lies within {TOLERANCE:.0%} of its column's range. A column that is "
    "nearly always the same is right without any attack: compare it with the baselines."
)


def columns_of(result: Result) -> tuple[ColumnTable, ...]:
    """Return a table for every part of an item that attacks rows (one line if its data set is unavailable); none for others.

    A run whose tensor files are missing has none: its rows were not brought along.
    """
    if result.recorded is not None and result.recorded.columns:
        return result.recorded.columns
    runs = {name: path for name, path in result.runs.items() if Run.exists(path)}
    opened = {name: Run.open(path) for name, path in runs.items()}
    tables = (_of_part(name, run) for name, run in opened.items() if run.has_tensors())
    return tuple(table for table in tables if table is not None)


def _of_part(part: str, run: Run) -> ColumnTable | None:
    tables = row_tables(run, examples=0)
    if tables:
        return _table(part, tables)
    lost = _undecoded(run)
    words = f"columns of {lost} cannot be decoded: the data set is missing"
    return ColumnTable(part, (), ((words, ()),)) if lost else None


def _undecoded(run: Run) -> str:
    """Return the data set of a run that attacked rows (N x F), "" for images or without a stored trial."""
    for cell in run.cells():
        record = next(iter(run.records(cell=cell.id)), None)
        data = cell.settings.get("data")
        if record is not None and isinstance(data, Mapping):
            truth = run.tensors(record.trial).get("truth")
            return str(data.get("name")) if truth is not None and truth.ndim == ROW_RANK else ""
    return ""


def _table(part: str, tables: Sequence[RowTable]) -> ColumnTable:
    heads = tuple(
        f"{table.name}{' (baseline)' if table.baseline else ''}, n = {table.scores.row.n}" for table in tables
    )
    lines = {VALUES: [table.scores.values for table in tables], ROWS: [table.scores.row for table in tables]}
    lines |= {name: [table.scores.columns[name] for table in tables] for name in tables[0].columns}
    return ColumnTable(part, heads, tuple((name, tuple(map(_word, shares))) for name, shares in lines.items()))


def _word(estimate: Estimate) -> tuple[str, str]:
    return percent(estimate.value), percent_interval(estimate)
