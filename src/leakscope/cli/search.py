"""`leakscope search`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.sweep import check_device, make_engine
from leakscope.cli.watching import printable

if TYPE_CHECKING:
    from leakscope.experiments.policy_search import Found


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
) -> None:
    """Search transformation policies: random ones, scored, the best kept; a cut search goes on where it was."""
    check_device(device)
    chosen = make_engine(engine, address)
    from leakscope.experiments.policy_search import read_search, run_search

    said = read_search(file)
    directory = out or Path("runs") / file.stem

    def say(line: str) -> None:
        if not quiet:
            typer.echo(printable(line), err=True)

    try:
        found = run_search(said, directory, engine=chosen, device=device, say=say)
    except KeyboardInterrupt:
        again = shlex.join(["leakscope", "search", str(file), *(["--out", str(out)] if out else [])])
        typer.echo(f"stopped; what is scored is saved in {directory}; go on with: {again}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(plain(found), indent=1))
        return
    show(found)
    typer.echo(f"hybrid: {found.selection.hybrid}\nrecords: {directory}")


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
