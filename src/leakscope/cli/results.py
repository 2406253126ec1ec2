"""Commands on the numbers of a run: `show`, `compare`, `export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import RunPath, name_file, writing
from leakscope.cli.text import plain_table, print_named, printable, terminal
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from leakscope.metrics.interval import Estimate
    from leakscope.report.row_tables import RowTable
    from leakscope.report.tables import Row
    from leakscope.report.text_tables import TextTable
    from leakscope.store import Run

MORE = "a wider terminal shows more columns"
NO_TRIAL = "no trial is finished yet"


@app.command()
def show(
    run: RunPath,
    by: Annotated[
        list[str] | None, typer.Option(help="Axis to group by; several are crossed. All axes if not given.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Print the table with all intervals as markdown, latex or csv.")
    ] = None,
    out: Annotated[Path, typer.Option(help="With --to: file to write, - for stdout.")] = Path("-"),
) -> None:
    """Show a run, or an audit written with --out, as a table with n and the 95 % interval of the content rate."""
    from leakscope.core.record import nobody_knows
    from leakscope.report.cells import axes_of
    from leakscope.report.sections import labels_of
    from leakscope.report.sheet import sheet_of
    from leakscope.report.tables import cell_table, tabulate
    from leakscope.report.text_tables import table_of
    from leakscope.store import Run
    from leakscope.store.directory import AUDIT

    if to is None and str(out) != "-":
        raise InputError("--out is for --to markdown, latex or csv")
    if (run / AUDIT).is_file():
        show_audit(run, by, to, out)
        return
    sheet = sheet_of(Run.open(run))
    known = axes_of(sheet.cells)
    for axis in by or ():
        if axis not in known:
            raise InputError(f"--by {axis!r} is no axis of this run; its axes: {', '.join(known) or 'none'}")
    table = tabulate(sheet, tuple(by)) if by else cell_table(sheet)
    if to is not None:
        write_table(table_of(table, labels_of(sheet)), to, out)
        return
    console = terminal()
    if not table.rows:
        console.print(NO_TRIAL)
        return
    shown, whole = result_table(console, table.rows, table.axes)
    console.print(shown)
    pooled = f"; pooled over {', '.join(table.pooled)}" if table.pooled else ""
    note = f"n trials; content with its 95 % interval, conv., label: success rates; means over all samples{pooled}"
    console.print(note + ("" if whole else f"; {MORE}"), style="dim")
    if line := nobody_knows(sheet.cells):
        console.print(line)
    show_rows(console, Run.open(run))


def show_audit(directory: Path, by: Sequence[str] | None, to: str | None, out: Path) -> None:
    """Show the attacks and baselines of an audit that was written with --out."""
    from leakscope.report.text_tables import audit_table, static_rows, value_text
    from leakscope.store.directory import AUDIT
    from leakscope.store.untrusted import foreign_content, plain_file, read_text

    if by:
        raise InputError(f"--by is for runs; {directory} is an audit")
    with foreign_content(directory):
        record = read_text(plain_file(directory, AUDIT, "an audit"))
        table, static = audit_table(record), static_rows(record)
    if to is not None:
        write_table(table, to, out)
        return
    if static:
        heads = ("before any attack", "severity", "finding", "decided by")
        print_named(heads, [tuple(map(printable, row)) for row in static])
    print_named([column.head for column in table.columns], table.rows(value_text))


def write_table(table: TextTable, to: str, out: Path) -> None:
    """Write a table as markdown, latex or csv, and print the name of the file."""
    from leakscope.core.registry import lookup
    from leakscope.report.text_tables import FORMATS
    from leakscope.store.disk import writing_to

    text = lookup(FORMATS, to, "table format")(table)
    with writing(f"--out {out}"), writing_to(out) as file:
        file.write(text.encode())
    name_file(out)


@app.command()
def compare(first: RunPath, second: RunPath) -> None:
    """Compare two runs on the cells they share, those with equal settings except titles."""
    from leakscope.report.sheet import sheet_of
    from leakscope.report.tables import cell_table
    from leakscope.store import Run

    tables = [cell_table(sheet_of(Run.open(path))) for path in (first, second)]
    a, b = ({row.cells[0]: row for row in table.rows} for table in tables)
    shared = [cell for cell in a if cell in b]
    if not shared:
        raise InputError(f"{first} and {second} share no cell: no settings are equal in both")
    console = terminal()
    shown, whole = comparison_table(console, [(a[cell], b[cell]) for cell in shared], tables[0].axes)
    console.print(shown)
    note = (
        f"A is {first}, B is {second}; cells in A alone: {len(a) - len(shared)}, in B alone: {len(b) - len(shared)}; "
        "apart: the 95 % intervals of content or MSE do not overlap"
    )
    console.print(note + ("" if whole else f"; {MORE}"), style="dim")


@app.command()
def export(
    run: RunPath,
    to: Annotated[str, typer.Option(help="csv, json or parquet.")] = "csv",
    out: Annotated[
        Path | None, typer.Option(help="File to write, - for stdout; RUN/records.<form> if not given.")
    ] = None,
) -> None:
    """Export the records of a run, one row per sample of each trial."""
    from leakscope.store import Run
    from leakscope.store import export as write

    name_file(write(Run.open(run), to, out or run / f"records.{to}"))


TABULAR = ("adult", "breast_cancer")  # tabular data sets that a scenario can name


def result_table(console: Console, rows: Sequence[Row], axes: Sequence[str]) -> tuple[Table, bool]:
    """Return the table of a run, and whether all columns fit."""
    from leakscope.report.numbers import number, percent
    from leakscope.report.tables import learned_in

    heads = [("n", 0), ("content", 0), ("", 0), ("conv.", 1), ("label", 2), ("MSE", 0), ("SSIM", 2), ("steps", 1)]
    learned = learned_in(rows)
    heads += [*((name, 1) for name in learned), ("outcomes", 3)]
    lines = [
        [
            str(row.trials),
            percent(row.content.value),
            _interval(row.content),
            percent(row.convergence.value) if row.convergence else "",
            percent(row.label.value) if row.label else "",
            number(row.mse.value),
            number(row.ssim.value) if row.ssim else "",
            number(row.steps.value) if row.steps else "",
            *(number(row.learned[name].value) if name in row.learned else "" for name in learned),
            "" if row.baseline else ", ".join(f"{n} {name}" for name, n in row.outcomes.items()),
        ]
        for row in rows
    ]
    return _fitting(console, rows, axes, heads, lines)


def comparison_table(console: Console, pairs: Sequence[tuple[Row, Row]], axes: Sequence[str]) -> tuple[Table, bool]:
    """Return the table of two runs side by side, and whether all columns fit."""
    from leakscope.report.numbers import number, percent

    levels = {"n": 1, "content": 0, "MSE": 0, "steps": 2}
    heads = [(head, level) for name, level in levels.items() for head in (f"{name}\nA", "\nB")]
    lines = [
        [
            *(str(row.trials) for row in pair),
            *(percent(row.content.value) for row in pair),
            *(number(row.mse.value) for row in pair),
            *(number(row.steps.value) if row.steps else "" for row in pair),
            "yes" if _apart(pair[0].content, pair[1].content) or _apart(pair[0].mse, pair[1].mse) else "",
        ]
        for pair in pairs
    ]
    return _fitting(console, [first for first, _ in pairs], axes, [*heads, ("\napart", 0)], lines)


def _fitting(
    console: Console,
    rows: Sequence[Row],
    axes: Sequence[str],
    heads: Sequence[tuple[str, int]],
    lines: Sequence[Sequence[str]],
) -> tuple[Table, bool]:
    """Return the table with the columns that fit into the terminal, and whether all up to level 2 do; level 0 always stays."""
    others = [axis for axis in axes if axis != "attack"]
    names = [_name(row, others) for row in rows]
    left = [_longest(column, str.split) for column in zip(("attack", *_short(others)), *names, strict=True)]
    right = [_longest(column, str.splitlines) for column in zip((head for head, _ in heads), *lines, strict=True)]
    for level in range(max(level for _, level in heads), -1, -1):
        fitting = [place for place, (_, of_column) in enumerate(heads) if of_column <= level]
        widths = [*left, *(right[place] for place in fitting)]
        if sum(widths) + 2 * len(widths) + 1 <= console.width:
            break
    table = _bare(others, [heads[place][0] for place in fitting])
    for name, line in zip(names, lines, strict=True):
        table.add_row(*name, *(line[place] for place in fitting))
    return table, level >= 2


def _longest(column: Sequence[str], cut: Callable[[str], list[str]]) -> int:
    """Return the terminal width of the longest part of a column; names may break between words."""
    from rich.cells import cell_len

    return max((cell_len(part) for text in column for part in cut(text)), default=0)


def _bare(axes: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table: attack and axes on the left, numbers on the right."""
    table = plain_table()
    for head in ("attack", *_short(axes)):
        table.add_column(printable(head), overflow="fold")
    for head in numbers:
        table.add_column(head, no_wrap=True, justify="left" if head == "outcomes" else "right")
    return table


def _name(row: Row, axes: Sequence[str]) -> list[str]:
    """Return the attack of a row (a baseline in brackets) and its axis values."""
    from leakscope.report.cells import axis_value_text

    values = [axis_value_text(row.values[axis]) if axis in row.values else "" for axis in axes]
    return [printable(word) for word in (f"({row.attack})" if row.baseline else row.attack, *values)]


def _short(axes: Sequence[str]) -> list[str]:
    """Return the last word of each axis (of each field of a zip) if that is unambiguous, else the whole path.

    >>> _short(["defences.0.sigma", "attack.start", "model.start", "model.activation + weights.a"])
    ['sigma', 'attack.start', 'model.start', 'activation + a']
    """
    last = [" + ".join(field.rsplit(".", 1)[-1] for field in axis.split(" + ")) for axis in axes]
    return [word if last.count(word) == 1 else axis for word, axis in zip(last, axes, strict=True)]


def _apart(a: Estimate, b: Estimate) -> bool:
    return a.high < b.low or b.high < a.low


def _interval(value: Estimate) -> str:
    """Return the interval of a rate in percent, in its shortest form."""
    from leakscope.report.numbers import percent_interval

    return percent_interval(value).removesuffix(" %").replace(" to ", "-")


def show_rows(console: Console, run: Run) -> None:
    """Print how much of the decoded table rows is right, and the first attack's first rows beside the true ones."""
    data = [cell.settings.get("data") for cell in run.cells()]
    if not any(isinstance(one, Mapping) and one.get("name") in TABULAR for one in data):
        return  # images: do not import torch
    from leakscope.report.row_tables import row_tables
    from leakscope.store.untrusted import foreign_content

    with foreign_content(run.directory):
        tables = row_tables(run)
    attacks = [table for table in tables if not table.baseline]
    if not attacks:
        return
    console.print(_row_summary(tables))
    console.print(_column_table(attacks[0]))
    within = f"{attacks[0].scores.tolerance:.0%} of the column's range"
    console.print(f"right: the same word, or a number within {within}; * marks a wrong value", style="dim")


def _row_summary(tables: Sequence[RowTable]) -> Table:
    from leakscope.report.numbers import number, percent

    shown = plain_table()
    shown.add_column("decoded rows", overflow="fold")
    for head in ("n", "values right", "", "rows right", "", "MSE"):
        shown.add_column(head, justify="right", no_wrap=True)
    for table in tables:
        scores = table.scores
        rates = [word for e in (scores.values, scores.row) for word in (percent(e.value), _interval(e))]
        name = f"({table.name})" if table.baseline else table.name
        shown.add_row(printable(name), str(scores.row.n), *rates, number(scores.mse.value))
    return shown


def _column_table(table: RowTable) -> Table:
    from leakscope.report.numbers import percent

    shown = plain_table(title=printable(table.name))
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
        shown.add_row(name, percent(rate.value), _interval(rate), *(printable(v) for v in values))
    row = table.scores.row
    shown.add_row("all columns", percent(row.value), _interval(row))
    return shown
