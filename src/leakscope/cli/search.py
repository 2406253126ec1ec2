"""`leakscope search`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.progress import printable
from leakscope.cli.sweep import check_device, make_engine
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.search.policy_search import Found, PolicySearch

PAGE, ASKED = "report.html", "asked.json"
COMPARED = ("random", "optuna")
PICTURES, MOST_WALKS = 4, 10


@app.command()
def search(
    file: Annotated[Path, typer.Argument(help="The search, a YAML file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Directory; runs/<name of the file> if not given.")] = None,
    engine: Annotated[str, typer.Option(help="local (uses the cores), serial, or ray (extra 'ray').")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; a local one is started if not given.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Random search and Optuna at equal cost (extra 'search').")
    ] = False,
) -> None:
    """Search transformation policies: random ones, scored, the best kept; a cut search goes on where it was. Writes a page."""
    check_device(device)
    chosen = make_engine(engine, address)
    from leakscope.search.policy_search import compare_methods, read_search, run_search

    said = read_search(file)
    directory = out or Path("runs") / file.stem

    def say(line: str) -> None:
        if not quiet:
            typer.echo(printable(line), err=True)

    again = shlex.join(
        ["leakscope", "search", str(file), *(["--out", str(out)] if out else []), *(["--compare"] if compare else [])]
    )
    try:
        if compare:
            made = compare_methods(said, directory, engine=chosen, device=device, say=say)
        else:
            made = {said.method: run_search(said, directory, engine=chosen, device=device, say=say)}
    except KeyboardInterrupt:
        typer.echo(f"stopped; what is scored is saved in {directory}; go on with: {again}", err=True)
        raise typer.Exit(130) from None
    page = write_page(said, made, directory / PAGE, command=again, device=device)
    if as_json:
        told = {name: plain(found) for name, found in made.items()}
        typer.echo(json.dumps(told if compare else told[said.method], indent=1))
        return
    for name, found in made.items():
        if compare:
            typer.echo(f"{name}:")
        show(found)
        typer.echo(f"hybrid: {found.selection.hybrid}")
    typer.echo(f"records: {directory}\npage: {page}")


def write_page(
    said: PolicySearch, made: dict[str, Found], path: Path, *, command: str, device: str | None = None
) -> Path:
    """Write the page of searches, with what the kept policies do to pictures; return its path."""
    from leakscope.report.search_page import write_search
    from leakscope.search.policies import walks_of

    kept = [each.policy for found in made.values() for each in found.selection.kept]
    walks = walks_of(kept[:MOST_WALKS], said.data, number=PICTURES, seed=said.seed)
    try:
        return write_search(said, made, walks, path, command=command, device=device)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from None


def is_search(directory: Path) -> bool:
    """Return whether a directory holds a policy search, or a comparison of two."""
    return any((directory / part / ASKED).exists() for part in ("", *COMPARED))


def report_search(directory: Path, out: Path | None) -> Path:
    """Write the page of the search (or of both searches of a comparison) that a directory holds; return its path."""
    from leakscope.search.policy_search import read_finished

    parts = [""] if (directory / ASKED).exists() else [each for each in COMPARED if (directory / each / ASKED).exists()]
    read = [read_finished(directory / part) for part in parts]
    made: dict[str, Found] = {said.method: found for said, found in read}
    command = shlex.join(["leakscope", "report", str(directory)])
    return write_page(read[0][0], made, out or directory / PAGE, command=command)


def plain(found: Found) -> dict[str, object]:
    """Return the end of a search as plain data."""
    import dataclasses

    return {
        "kept": [dataclasses.asdict(each) for each in found.selection.kept],
        "hybrid": found.selection.hybrid,
        "rejected": found.selection.rejected,
        "scored": len(found.candidates),
        "front": [each.policy for each in found.front],
        "area": found.area,
        "none": None if found.reference is None else dataclasses.asdict(found.reference),
    }


def show(found: Found) -> None:
    """Print the kept policies, no policy beside them, and how many there were."""
    from rich.console import Console
    from rich.table import Table

    table = Table("policy", "privacy (lower is better)", "accuracy score")
    for each in found.selection.kept:
        table.add_row(each.policy, f"{each.privacy:.4f}", f"{each.accuracy:.2f}")
    if found.reference is not None:
        table.add_row("none", f"{found.reference.privacy:.4f}", f"{found.reference.accuracy:.2f}")
    console = Console()
    console.print(table)
    number = len(found.candidates)
    console.print(f"{number} policies scored, {found.selection.rejected} under the accuracy threshold", highlight=False)
    if found.area is not None:
        beaten = f"{len(found.front)} that none beats on both scores, area beyond no policy {found.area:.4g}"
        console.print(beaten, highlight=False)
