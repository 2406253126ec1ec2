"""Commands on the page of a run: `report` with its figures, `serve`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import RunPath, name_file, shell_command, writing

if TYPE_CHECKING:
    from leakscope.report.figures import Figure

LIST = "list"


@app.command()
def report(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="File to write, - for stdout; RUN/report.html or RUN/NAME if not given.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            help="Write one chart or gallery of the page instead: NAME.svg, or NAME.pdf and NAME.png (extra 'figures'). "
            "list: print the names.",
        ),
    ] = None,
) -> None:
    """Write the page of a run or of a policy search, one self-contained HTML file; with --figure, one figure of it."""
    from leakscope.cli.search import figures_of_directory, is_search, report_search

    if is_search(run):
        if figure is not None:
            report_figure(figures_of_directory(run), figure, run, out)
        else:
            name_file(report_search(run, out))
        return
    from leakscope.report.figures import figures_of
    from leakscope.report.page import write
    from leakscope.report.serving import page_of_directory

    page = page_of_directory(run, command=shell_command(["report", run], {}))
    if figure is not None:
        report_figure(figures_of(page), figure, run, out)
        return
    path = out or run / "report.html"
    with writing(f"--out {path}"):
        name_file(write(page, path))


def report_figure(figures: Mapping[str, Figure], figure: str, run: Path, out: Path | None) -> None:
    """Write one figure of a page, or print the names of all of them."""
    from leakscope.report.figures import save_figure

    if figure == LIST:
        for name in figures:
            typer.echo(name)
        return
    name, _, form = figure.rpartition(".")
    path = out or run / figure
    with writing(f"--out {path}"):
        name_file(save_figure(figures, name, path, form=form))


@app.command()
def serve(
    run: RunPath,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 8765,
) -> None:
    """Serve the page of a run on this machine while the sweep is running."""
    from leakscope.report.serving import make_server

    server = make_server(run, port)
    typer.echo(f"http://127.0.0.1:{server.server_address[1]}/ shows {run} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("ended")
    finally:
        server.server_close()
