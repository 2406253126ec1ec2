"""`leakscope paper report`, `record` and `status`: what was measured, as a page, as data, and how much of it there is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from leakscope.core.errors import InputError
from leakscope_papers.cli.run import OUT

Scale = Annotated[str | None, typer.Option(help="smoke, small or full; the largest one measured if not given.")]
Only = Annotated[list[str] | None, typer.Option(help="Items or papers; all that were measured if not given.")]
Runs = Annotated[Path, typer.Argument(help="Directory of the runs.")]


def report(
    directory: Runs = OUT,
    out: Annotated[Path | None, typer.Option(help="Page to write; DIRECTORY/papers.html if not given.")] = None,
    scale: Scale = None,
    only: Only = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Read the recorded results of the papers instead of a directory of runs.")
    ] = False,
) -> None:
    """Write the page of all items that were run: published and measured numbers, claims, doubts, images."""
    from leakscope_papers.pages.page import render_papers
    from leakscope_papers.results import results_in

    _check_scale(scale)
    results = results_in(None if recorded else directory, scale, only)
    words = ["leakscope", "paper", "report", "--recorded" if recorded else str(directory)]
    words += ["--scale", scale] if scale else []
    words += [word for name in only or [] for word in ("--only", name)]
    _write(out or directory / "papers.html", render_papers(results, command=shlex.join(words)))


def record(
    directory: Runs = OUT,
    scale: Scale = None,
    only: Only = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for ITEM.SCALE.json; the folders of the papers if not given."),
    ] = None,
) -> None:
    """Record the rows of runs as JSON, one file an item and scale: settings, n, mean, interval, versions, machine, date.

    A directory of such files, recorded with --out on another machine, is read like one of runs: rows need no stored image. So is a run
    without its tensor files; traces and the columns of table rows are then left out.
    """
    from leakscope_papers.items import read_item
    from leakscope_papers.pages.columns import columns_of
    from leakscope_papers.records import recorded_file, with_rows_of, write_recorded
    from leakscope_papers.results import recorded_in, results_of_runs
    from leakscope_papers.shared_rows import drop_copies

    _check_scale(scale)
    recordings = recorded_in(directory, scale, only)
    for result in () if recordings else results_of_runs(directory, scale, only):
        if result.recorded is not None:
            recordings.append(replace(result.recorded, columns=columns_of(result)))
    for recorded in recordings:
        path = recorded_file(recorded.item, recorded.scale, out)
        write_recorded(with_rows_of(path, recorded), path)
        typer.echo(f"{path}: {len(recorded.rows)} rows")
    for recorded in recordings:  # after all owners are written
        drop_copies(read_item(recorded.item), recorded.scale, out)


def status(only: Only = None) -> None:
    """List the recorded rows and printed numbers of each item, why others are missing, and each paper's share that agrees."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    from leakscope_papers.estimates import recorded_runs
    from leakscope_papers.items import choose_items
    from leakscope_papers.pages.standing import paper_line
    from leakscope_papers.scales import SCALES
    from leakscope_papers.status import missing_reason, numbers_of, rows_of, total

    names = Column("item", no_wrap=True)
    table = Table(names, *SCALES, "numbers", Column("not measured", ratio=1), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    items = choose_items(only or ["all"])
    for item in items:
        counts = {scale: rows_of(item, scale) for scale in SCALES if scale in item.scales}
        words = [f"{counts[scale].measured}/{counts[scale].planned}" if scale in counts else "" for scale in SCALES]
        numbers = numbers_of(item)
        share = f"{numbers.alike}/{numbers.measured}/{numbers.printed}" if numbers.printed else ""
        table.add_row(item.name, *words, share, missing_reason(item, counts))
    console = Console()
    console.print(table)
    console.print("smoke, small, full: recorded / planned rows; numbers: alike / measured / printed", style="dim")
    papers = dict.fromkeys(item.name.partition("-")[0] for item in items)
    for paper in papers:
        console.print(paper_line(paper, total(item for item in items if item.name.startswith(f"{paper}-"))))
        seconds = sum(run.seconds for run in recorded_runs() if run.on_gpu and run.item.startswith(f"{paper}-"))
        console.print(
            f"{paper}: {seconds / 3600:.2f} GPU hours recorded with its rows; older rows have none", style="dim"
        )


def render(
    names: Annotated[list[str] | None, typer.Argument(help="Papers; all that have results if not given.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with code 1 if a page differs from its data.")
    ] = False,
) -> None:
    """Write the README of each paper from its recorded results and notes."""
    from leakscope.core.registry import lookup
    from leakscope_papers.pages.readme import readme_file, rendered
    from leakscope_papers.registry import papers

    with_results = {name: folder for name, folder in papers().items() if (folder / "results").is_dir()}
    for name in names or []:
        lookup(with_results, name, "paper with results")
    stale = []
    for name in names or with_results:
        path, text = readme_file(name), rendered(name)
        if not check:
            _write(path, text)
        elif not path.is_file() or path.read_text("utf-8") != text:
            stale.append(name)
            typer.echo(f"{path} differs from its data; run: leakscope paper render {name}", err=True)
    if stale:
        raise typer.Exit(1)


def _check_scale(scale: str | None) -> None:
    from leakscope.core.registry import lookup
    from leakscope_papers.scales import SCALES

    if scale is not None:
        lookup(dict.fromkeys(SCALES), scale, "--scale")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from None
    typer.echo(str(path))
