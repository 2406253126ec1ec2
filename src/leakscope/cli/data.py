"""`leakscope data`: list the data sets and fetch missing ones. Each command imports the rest of the package when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.text import print_named, terminal

app = typer.Typer(help="List the data sets, and fetch those that are not bundled.", no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option(help="Directory to search instead of $LEAKSCOPE_DATA and the cache.", show_default=False),
]


@app.command("list")
def list_sources(
    directory: Directory = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Module that registers data sets.", show_default=False),
    ] = None,
) -> None:
    """List all data sets: shape, whether the files are on this machine, and terms."""
    from leakscope.core.plugins import import_plugin, load_plugins
    from leakscope.data.loading import locate
    from leakscope.data.npz import sizes
    from leakscope.data.sources import SOURCES

    load_plugins()
    for module in imports or ():
        import_plugin(module)
    rows = []
    for name, source in SOURCES.items():
        location = locate(name, directory)
        shape = "x".join(map(str, source.shape))
        if location and location[0].suffix == ".npz":
            train, test = sizes(location[0])
            shape = f"{train:,} + {test:,} of {shape}"
        rows.append(
            (name, source.kind, shape, str(source.classes), _state(name, location and location[0]), source.terms)
        )
    print_named(("name", "kind", "size", "classes", "state", "terms"), rows)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The data set to fetch; `leakscope data list` names them.")],
    directory: Annotated[
        Path | None, typer.Option(help="Directory to download into instead of the cache.", show_default=False)
    ] = None,
) -> None:
    """Download the official files of a data set, resuming partial downloads, and check them."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from leakscope.data.fetch import fetch as fetch_files

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def report(done: int, total: int | None, file: str) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        folder = fetch_files(name, report, directory=directory)
    terminal().print(f"{name} is in {folder}", soft_wrap=True)


def _state(name: str, path: Path | None) -> str:
    """Return whether a data set is bundled, on disk or missing, and if missing, whether it can be fetched."""
    from leakscope.data.loading import BUNDLED
    from leakscope.data.sources import SOURCES

    if path is not None:
        return "bundled" if path.parent == BUNDLED else "on disk"
    if SOURCES[name].make is not None:
        return "from another package"
    return "missing (fetch)" if SOURCES[name].downloads else "missing"
