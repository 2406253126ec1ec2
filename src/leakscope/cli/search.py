"""`leakscope search` and `leakscope policy`: transformation policies (ATS)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import (
    Address,
    AsJson,
    Device,
    EngineName,
    Imports,
    Options,
    choose_device,
    import_components,
    make_engine,
    shell_command,
    writing,
)
from leakscope.cli.progress import print_lines
from leakscope.cli.text import printable

if TYPE_CHECKING:
    from leakscope.report.figures import Figure
    from leakscope.search.policies import Walk
    from leakscope.search.records import SearchResult
    from leakscope.search.settings import PolicySearch

PAGE, ASKED = "report.html", "asked.json"
COMPARED = ("random", "optuna")
PICTURES, MOST_WALKS = 4, 10

policies = typer.Typer(help="Show transformation policies (ATS) and what they do to an image.", no_args_is_help=True)
app.add_typer(policies, name="policy")


@app.command()
def search(
    file: Annotated[Path, typer.Argument(help="The search, a YAML file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Directory; runs/<name of the file> if not given.")] = None,
    engine: EngineName = "local",
    address: Address = None,
    device: Device = "auto",
    imports: Imports = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
    as_json: AsJson = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare random search with Optuna at equal cost (extra 'search').")
    ] = False,
) -> None:
    """Search transformation policies at random, keep those with the best scores, and write a page; continues an interrupted search."""
    device = choose_device(device)
    import_components(imports)
    chosen = make_engine(engine, address)
    from leakscope.search.policy_search import compare_methods, run_search
    from leakscope.search.settings import read_search

    settings = read_search(file)
    directory = out or Path("runs") / file.stem
    say = print_lines(quiet=quiet)
    options: Options = {"--out": (out, None), "--compare": (compare, False), "--import": (imports, None)}
    again = shell_command(["search", file], options)
    try:
        if compare:
            results = compare_methods(settings, directory, engine=chosen, device=device, say=say)
        else:
            results = {settings.method: run_search(settings, directory, engine=chosen, device=device, say=say)}
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished scores are saved in {directory}; continue with: {again}", err=True)
        raise typer.Exit(130) from None
    page = write_page(settings, results, directory / PAGE, command=again, device=device)
    if as_json:
        plain = {name: plain_result(result) for name, result in results.items()}
        typer.echo(json.dumps(plain if compare else plain[settings.method], indent=1))
        return
    for name, result in results.items():
        if compare:
            typer.echo(f"{name}:")
        show_result(result)
        typer.echo(f"hybrid: {result.selection.hybrid}")
    typer.echo(f"records: {directory}\npage: {page}")


@policies.command("list")
def list_operations() -> None:
    """List the 50 operations that policies consist of."""
    from rich.console import Console
    from rich.table import Table

    from leakscope.search.policies import operation_rows

    table = Table("index", "operation", "each picture draws")
    for row in operation_rows():
        table.add_row(*row)
    Console().print(table)


@policies.command()
def show(
    policy: Annotated[str, typer.Argument(help="Such as 3-1-7, or a hybrid 3-1-7+43-18-18.", show_default=False)],
    data: Annotated[str, typer.Option(help="Data set of the images.")] = "fashion_mnist",
    images: Annotated[int, typer.Option(help="How many images.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the signs.")] = 0,
    out: Annotated[Path | None, typer.Option(help="PNG to write; policy-<POLICY>.png if not given.")] = None,
) -> None:
    """Draw every step of a policy on real images into a PNG."""
    from leakscope.search.policies import draw_policy

    path = out or Path(f"policy-{policy}.png")
    for line in draw_policy(policy, data, images, seed, path):
        typer.echo(line)
    typer.echo(f"picture: {path}")


@policies.command("psnr")
def show_psnr(
    run: Annotated[Path, typer.Argument(help="A run directory of `leakscope run`.", show_default=False)],
) -> None:
    """Show both PSNRs of a run with transformed data: against the original images, and against what the network saw."""
    from rich.console import Console
    from rich.table import Table

    from leakscope.search.policies import both_psnr

    rows = both_psnr(run)
    names = list(dict.fromkeys(name for row in rows for name in row.axes))
    table = Table(*names, "n", "against x, dB (95 %)", "against T(x), dB (95 %)")
    for row in rows:
        axes = [printable(str(row.axes.get(name, ""))) for name in names]
        values = [f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]" for e in (row.private, row.seen)]
        table.add_row(*axes, str(row.private.n), *values)
    Console().print(table)


def write_page(
    settings: PolicySearch, results: dict[str, SearchResult], path: Path, *, command: str, device: str | None = None
) -> Path:
    """Write the page of searches, with the kept policies applied to images; return its path."""
    from leakscope.report.search_page import write_search

    walks = _walks(settings, results)
    with writing(path):
        return write_search(settings, results, walks, path, command=command, device=device)


def is_search(directory: Path) -> bool:
    """Return whether a directory holds a policy search or a comparison of two."""
    return any((directory / part / ASKED).exists() for part in ("", *COMPARED))


def report_search(directory: Path, out: Path | None) -> Path:
    """Write the page of the search (or comparison) in a directory; return its path."""
    settings, results = _stored(directory)
    return write_page(settings, results, out or directory / PAGE, command=shell_command(["report", directory], {}))


def figures_of_directory(directory: Path) -> dict[str, Figure]:
    """Return the figures of the page of a search (or comparison) in a directory."""
    from leakscope.report.search_figures import figures_of_search

    settings, results = _stored(directory)
    return figures_of_search(settings, results, _walks(settings, results))


def _stored(directory: Path) -> tuple[PolicySearch, dict[str, SearchResult]]:
    """Return the settings and the results of each method in a directory."""
    from leakscope.search.records import read_finished

    parts = [""] if (directory / ASKED).exists() else [name for name in COMPARED if (directory / name / ASKED).exists()]
    read = [read_finished(directory / part) for part in parts]
    return read[0][0], {settings.method: result for settings, result in read}


def _walks(settings: PolicySearch, results: dict[str, SearchResult]) -> list[Walk]:
    """Return the kept policies applied to images."""
    from leakscope.search.policies import walks_of

    policies = [candidate.policy for result in results.values() for candidate in result.selection.kept]
    return walks_of(policies[:MOST_WALKS], settings.data, number=PICTURES, seed=settings.seed)


def plain_result(result: SearchResult) -> dict[str, object]:
    """Return the result of a search as plain data."""
    import dataclasses

    return {
        "kept": [dataclasses.asdict(candidate) for candidate in result.selection.kept],
        "hybrid": result.selection.hybrid,
        "rejected": result.selection.rejected,
        "scored": len(result.candidates),
        "front": [candidate.policy for candidate in result.front],
        "area": result.area,
        "none": None if result.reference is None else dataclasses.asdict(result.reference),
    }


def show_result(result: SearchResult) -> None:
    """Print the kept policies, the score without a policy, and the number of policies."""
    from rich.console import Console
    from rich.table import Table

    table = Table("policy", "privacy (lower is better)", "accuracy score")
    for candidate in result.selection.kept:
        table.add_row(candidate.policy, f"{candidate.privacy:.4f}", f"{candidate.accuracy:.2f}")
    if result.reference is not None:
        table.add_row("none", f"{result.reference.privacy:.4f}", f"{result.reference.accuracy:.2f}")
    console = Console()
    console.print(table)
    number = len(result.candidates)
    console.print(
        f"{number} policies scored, {result.selection.rejected} under the accuracy threshold", highlight=False
    )
    if result.area is not None:
        beaten = f"{len(result.front)} that none beats on both scores, area beyond no policy {result.area:.4g}"
        console.print(beaten, highlight=False)
