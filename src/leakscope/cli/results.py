"""What one does with a run: `show`, `compare`, `export`, `report`, `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import shell_command, writing
from leakscope.cli.text import terminal
from leakscope.core.errors import InputError

MORE = "a wider terminal shows more columns"
NO_TRIAL = "no trial has landed yet"
RunPath = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]


@app.command()
def show(
    run: RunPath,
    by: Annotated[
        list[str] | None, typer.Option(help="Axis to group by; several are crossed. All axes if none is named.")
    ] = None,
) -> None:
    """Show a run as a table: rates and means with n, and the 95 % interval of the content rate; the page has them all."""
    from leakscope.cli.result_tables import result_table, show_rows
    from leakscope.report.cells import axes_of
    from leakscope.report.sheet import sheet_of
    from leakscope.report.tables import cell_table, tabulate
    from leakscope.store import Run

    sheet = sheet_of(Run.open(run))
    known = axes_of(sheet.cells)
    for axis in by or ():
        if axis not in known:
            raise InputError(f"--by {axis!r} is no axis of this run; its axes: {', '.join(known) or 'none'}")
    table = tabulate(sheet, tuple(by)) if by else cell_table(sheet)
    console = terminal()
    if not table.rows:
        console.print(NO_TRIAL)
        return
    shown, whole = result_table(console, table.rows, table.axes)
    console.print(shown)
    pooled = f"; pooled over {', '.join(table.pooled)}" if table.pooled else ""
    note = f"n trials; content with its 95 % interval, conv., label: success rates; means over all samples{pooled}"
    console.print(note + ("" if whole else f"; {MORE}"), style="dim")
    show_rows(console, Run.open(run))


@app.command()
def compare(first: RunPath, second: RunPath) -> None:
    """Compare the cells that two runs share, side by side: those whose settings are equal but for titles."""
    from leakscope.cli.result_tables import comparison_table
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
        "apart: the 95 % intervals of content or MSE do not meet"
    )
    console.print(note + ("" if whole else f"; {MORE}"), style="dim")


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
    """Write the page of a run or of a policy search: one self-contained HTML file."""
    from leakscope.cli.search import is_search, report_search

    if is_search(run):
        typer.echo(str(report_search(run, out)))
        return
    from leakscope.report.page import write
    from leakscope.report.serving import page_of_directory

    page = page_of_directory(run, command=shell_command(["report", run], {}))
    path = out or run / "report.html"
    with writing(f"--out {path}"):
        typer.echo(str(write(page, path)))


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
