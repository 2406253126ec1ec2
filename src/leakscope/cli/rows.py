"""Decoded table rows in the terminal: what `leakscope show` adds for a run that attacks rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leakscope.cli.progress import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from leakscope.report.row_tables import RowTable
    from leakscope.store import Run

TABLES = ("adult", "breast_cancer")  # the sets of rows that a scenario can name


def show_rows(console: Console, run: Run) -> None:
    """Print how much of the decoded rows is right, and the first rows of the first attack beside the true ones.

    Nothing for pictures.
    """
    chosen: list[Any] = [cell.settings.get("data") or {} for cell in run.cells()]
    if not any(data.get("name") in TABLES for data in chosen):
        return  # pictures: torch need not be imported
    from leakscope.report.row_tables import row_tables

    tables = row_tables(run)
    attacks = [table for table in tables if not table.baseline]
    if not attacks:
        return
    console.print(_summary(tables))
    console.print(_table(attacks[0]))
    within = f"{attacks[0].scores.tolerance:.0%} of the column's range"
    console.print(f"right: the same word, or a number within {within}; * marks a wrong value", style="dim")


def _summary(tables: Sequence[RowTable]) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    from leakscope.report.numbers import number, percent, percent_interval

    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    shown.add_column("decoded rows", overflow="fold")
    for head in ("n", "values right", "", "rows right", "", "MSE"):
        shown.add_column(head, justify="right", no_wrap=True)
    for table in tables:
        scores = table.scores
        rates = [
            word for e in (scores.values, scores.row) for word in (percent(e.value), _interval(percent_interval(e)))
        ]
        name = f"({table.name})" if table.baseline else table.name
        shown.add_row(printable(name), str(scores.row.n), *rates, number(scores.mse.value))
    return shown


def _table(table: RowTable) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    from leakscope.report.numbers import percent, percent_interval

    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0), title=printable(table.name), title_justify="left")
    shown.add_column("column", overflow="fold")
    shown.add_column("right", justify="right", no_wrap=True)
    shown.add_column("95 %", justify="right", no_wrap=True)
    for example in table.examples:
        shown.add_column(f"{example.name}\ntrue", overflow="fold")
        shown.add_column("\ndecoded", overflow="fold")
    for place, name in enumerate(table.columns):
        rate = table.scores.columns[name]
        values = [
            word
            for example in table.examples
            for word in (example.truth[place], example.guess[place] + ("" if example.right[place] else " *"))
        ]
        shown.add_row(name, percent(rate.value), _interval(percent_interval(rate)), *(printable(v) for v in values))
    row = table.scores.row
    shown.add_row("all columns", percent(row.value), _interval(percent_interval(row)))
    return shown


def _interval(text: str) -> str:
    return text.removesuffix(" %").replace(" to ", "-")
