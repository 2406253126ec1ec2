"""What one does with a run: `show`, `compare`, `export`, `report`, `serve`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from leakscope.metrics.interval import Estimate
    from leakscope.report.tables import Row

WIDE = 110
RunPath = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]


@app.command()
def show(
    run: RunPath,
    by: Annotated[
        list[str] | None, typer.Option(help="Axis to group by; several are crossed. All axes if none is named.")
    ] = None,
) -> None:
    """Show a run as a table: rates and means with n and 95 % intervals."""
    from leakscope.report.sheet import axes_of, sheet_of
    from leakscope.report.tables import cell_table, tabulate
    from leakscope.store import Run

    sheet = sheet_of(Run.open(run))
    known = axes_of(sheet.cells)
    for axis in by or ():
        if axis not in known:
            raise InputError(f"--by {axis!r} is no axis of this run; its axes: {', '.join(known) or 'none'}")
    table = tabulate(sheet, tuple(by)) if by else cell_table(sheet)
    console = _console()
    if not table.rows:
        console.print("no trial has landed yet")
        return
    console.print(_table(table.rows, table.axes, wide=console.width >= WIDE))
    pooled = f"; pooled over {', '.join(table.pooled)}" if table.pooled else ""
    note = f"n trials; content with its 95 % interval, conv., label: success rates; means over all samples{pooled}"
    console.print(note, style="dim")


@app.command()
def compare(first: RunPath, second: RunPath) -> None:
    """Compare the cells that two runs share, side by side: those whose settings are equal but for titles."""
    from leakscope.report.sheet import sheet_of
    from leakscope.report.tables import cell_table
    from leakscope.store import Run

    tables = [cell_table(sheet_of(Run.open(path))) for path in (first, second)]
    a, b = ({row.cells[0]: row for row in table.rows} for table in tables)
    shared = [cell for cell in a if cell in b]
    if not shared:
        raise InputError(f"{first} and {second} share no cell: no settings are equal in both")
    console = _console()
    console.print(_comparison([(a[cell], b[cell]) for cell in shared], tables[0].axes))
    console.print(
        f"A is {first}, B is {second}; cells in A alone: {len(a) - len(shared)}, in B alone: {len(b) - len(shared)}; "
        "apart: the 95 % intervals of content or MSE do not meet",
        style="dim",
    )


@app.command()
def export(
    run: RunPath,
    to: Annotated[str, typer.Option(help="csv, json or parquet.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/records.<form> if not given.")] = None,
) -> None:
    """Export the records of a run, one row for each sample of each trial."""
    from leakscope.store import Run
    from leakscope.store import export as write

    typer.echo(str(write(Run.open(run), to, out or run / f"records.{to}")))


@app.command()
def report(
    run: RunPath,
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/report.html if not given.")] = None,
) -> None:
    """Write the page of a run: one self-contained HTML file."""
    from leakscope.report.page import write
    from leakscope.report.serving import page_of_directory

    page = page_of_directory(run, command=shlex.join(["leakscope", "report", str(run)]))
    path = out or run / "report.html"
    try:
        write(page, path)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written ({error.strerror})") from None
    typer.echo(str(path))


@app.command()
def serve(
    run: RunPath,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 8765,
) -> None:
    """Show the page of a run live while the sweep goes on; only this machine can see it."""
    from leakscope.report.serving import make_server

    server = make_server(run, port)
    typer.echo(f"http://127.0.0.1:{server.server_address[1]}/ shows {run} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("ended")
    finally:
        server.server_close()


def _console() -> Console:
    """Return a terminal that takes names as they are: no markup, no emoji codes."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def _table(rows: Sequence[Row], axes: Sequence[str], *, wide: bool) -> Table:
    from leakscope.report.numbers import number, percent, percent_interval

    others = [axis for axis in axes if axis != "attack"]
    table = _bare(others, ("n", "content", "", "conv.", "label", "MSE", "SSIM", "steps"))
    if wide:
        table.add_column("outcomes")
    for row in rows:
        outcomes = "" if row.baseline else ", ".join(f"{n} {name}" for name, n in row.outcomes.items())
        table.add_row(
            *_name(row, others),
            str(row.trials),
            percent(row.content.value),
            percent_interval(row.content).removesuffix(" %").replace(" to ", "-"),
            percent(row.convergence.value) if row.convergence else "",
            percent(row.label.value) if row.label else "",
            number(row.mse.value),
            number(row.ssim.value) if row.ssim else "",
            number(row.steps.value) if row.steps else "",
            *([outcomes] if wide else []),
        )
    return table


def _comparison(pairs: Sequence[tuple[Row, Row]], axes: Sequence[str]) -> Table:
    from leakscope.report.numbers import number, percent

    others = [axis for axis in axes if axis != "attack"]
    table = _bare(others, ("n\nA", "\nB", "content\nA", "\nB", "MSE\nA", "\nB", "steps\nA", "\nB", "\napart"))
    for a, b in pairs:
        apart = _apart(a.content, b.content) or _apart(a.mse, b.mse)
        table.add_row(
            *_name(a, others),
            *(str(row.trials) for row in (a, b)),
            *(percent(row.content.value) for row in (a, b)),
            *(number(row.mse.value) for row in (a, b)),
            *(number(row.steps.value) if row.steps else "" for row in (a, b)),
            "yes" if apart else "",
        )
    return table


def _bare(axes: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table: attack and axes on the left, columns of numbers on the right."""
    from rich.box import SIMPLE
    from rich.table import Table

    from leakscope.cli.watching import printable

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for head in ("attack", *_short(axes)):
        table.add_column(printable(head), overflow="fold")
    for head in numbers:
        table.add_column(head, no_wrap=True, justify="right")
    return table


def _name(row: Row, axes: Sequence[str]) -> list[str]:
    """Return the attack of a row, a baseline in brackets, and its values on the axes."""
    from leakscope.cli.watching import printable
    from leakscope.report.sheet import say

    values = [say(row.values[axis]) if axis in row.values else "" for axis in axes]
    return [printable(word) for word in (f"({row.attack})" if row.baseline else row.attack, *values)]


def _short(axes: Sequence[str]) -> list[str]:
    """Return the last word of each axis where that tells them apart, else the whole path.

    >>> _short(["defences.0.sigma", "attack.start", "model.start"])
    ['sigma', 'attack.start', 'model.start']
    """
    last = [axis.rsplit(".", 1)[-1] for axis in axes]
    return [word if last.count(word) == 1 else axis for word, axis in zip(last, axes, strict=True)]


def _apart(a: Estimate, b: Estimate) -> bool:
    return a.high < b.low or b.high < a.low
