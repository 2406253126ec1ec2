"""What one does with a run: `show`, `compare`, `export`, `report`, `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.core.errors import InputError

if TYPE_CHECKING:
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
    from rich.console import Console

    from leakscope.report.sheet import axes_of, sheet_of
    from leakscope.report.tables import cell_table, tabulate
    from leakscope.store import Run

    sheet = sheet_of(Run.open(run))
    known = axes_of(sheet.cells)
    for axis in by or ():
        if axis not in known:
            raise InputError(f"--by {axis!r} is no axis of this run; its axes: {', '.join(known) or 'none'}")
    table = tabulate(sheet, tuple(by)) if by else cell_table(sheet)
    console = Console()
    if not table.rows:
        console.print("no trial has landed yet")
        return
    console.print(_table(table.rows, table.axes, wide=console.width >= WIDE))
    pooled = f"; pooled over {', '.join(table.pooled)}" if table.pooled else ""
    note = f"n trials; content with its 95 % interval, conv., label: success rates; means over all samples{pooled}"
    console.print(note, style="dim", highlight=False, markup=False)


@app.command()
def compare(first: RunPath, second: RunPath) -> None:
    """Compare the cells that two runs share, side by side; a cell's settings must be equal but for titles."""
    from rich.console import Console
    from rich.table import Table

    from leakscope.report.numbers import number, percent
    from leakscope.report.sheet import sheet_of
    from leakscope.report.tables import cell_table
    from leakscope.store import Run

    rows = [{row.cells[0]: row for row in cell_table(sheet_of(Run.open(path))).rows} for path in (first, second)]
    shared = [cell for cell in rows[0] if cell in rows[1]]
    console = Console()
    if not shared:
        raise InputError(f"{first} and {second} share no cell: no settings are equal in both")
    table = Table("cell", "n", "content", "", "MSE", "", "steps", "", "apart")
    for cell in shared:
        a, b = rows[0][cell], rows[1][cell]
        apart = _apart(a.content, b.content) or _apart(a.mse, b.mse)
        table.add_row(
            _name(a),
            f"{a.trials} / {b.trials}",
            percent(a.content.value),
            percent(b.content.value),
            number(a.mse.value),
            number(b.mse.value),
            number(a.steps.value) if a.steps else "",
            number(b.steps.value) if b.steps else "",
            "yes" if apart else "",
        )
    console.print(table)
    only = [len(rows[0]) - len(shared), len(rows[1]) - len(shared)]
    console.print(
        f"left {first}, right {second}; only there: {only[0]} and {only[1]} cells; apart: 95 % intervals of content or MSE "
        "do not meet",
        style="dim",
        highlight=False,
        markup=False,
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

    page = page_of_directory(run, command=f"leakscope report {run}")
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
    finally:
        server.server_close()


def _table(rows: Sequence[Row], axes: Sequence[str], *, wide: bool) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from leakscope.report.numbers import number, percent, percent_interval
    from leakscope.report.sheet import say

    others = [axis for axis in axes if axis != "attack"]
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for head in ("attack", *_short(others)):
        table.add_column(escape(head), overflow="fold")
    for head in ("n", "content", "", "conv.", "label", "MSE", "SSIM", "steps"):
        table.add_column(head, no_wrap=True, justify="right")
    if wide:
        table.add_column("outcomes")
    for row in rows:
        interval = percent_interval(row.content).removesuffix(" %").replace(" to ", "-")
        table.add_row(
            escape(f"({row.attack})" if row.baseline else row.attack),
            *(escape(say(row.values[axis])) if axis in row.values else "" for axis in others),
            str(row.trials),
            percent(row.content.value),
            interval,
            percent(row.convergence.value) if row.convergence else "",
            percent(row.label.value) if row.label else "",
            number(row.mse.value),
            number(row.ssim.value) if row.ssim else "",
            number(row.steps.value) if row.steps else "",
            *([", ".join(f"{n} {name}" for name, n in row.outcomes.items())] if wide else []),
        )
    return table


def _short(axes: Sequence[str]) -> list[str]:
    """Return the last word of each axis where that tells them apart, else the whole path.

    >>> _short(["defences.0.sigma", "attack.start", "model.start"])
    ['sigma', 'attack.start', 'model.start']
    """
    last = [axis.rsplit(".", 1)[-1] for axis in axes]
    return [word if last.count(word) == 1 else axis for word, axis in zip(last, axes, strict=True)]


def _name(row: Row) -> str:
    from rich.markup import escape

    from leakscope.report.sheet import say

    return escape(" ".join([row.attack, *(f"{axis}={say(value)}" for axis, value in row.values.items())]))


def _apart(a: Estimate, b: Estimate) -> bool:
    return a.high < b.low or b.high < a.low
