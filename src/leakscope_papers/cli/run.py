"""`leakscope paper list` and `paper run`: the items, and their runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from leakscope.cli.options import Device, Workers, choose_device, make_engine, parse_memory
from leakscope.cli.progress import RunProgress
from leakscope.cli.run import run_with_progress
from leakscope.cli.text import count, printable

if TYPE_CHECKING:
    from leakscope_papers.items import Item, Part

OUT = Path("leakscope-papers")
Out = Annotated[Path, typer.Option(help="Directory of the runs: OUT/item/scale/part.")]


def list_items() -> None:
    """List every item, how many numbers its paper prints, and its trials (or rows of a program) at each scale."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    from leakscope_papers.items import choose_items
    from leakscope_papers.scales import SCALES

    table = Table(
        Column("item", no_wrap=True),
        Column("what it is", ratio=1),
        "numbers",
        *SCALES,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for item in choose_items(["all"]):
        trials = [_planned_work(item, scale) for scale in SCALES]
        shared = dict.fromkeys(part.same_as.partition("/")[0] for part in item.parts if part.same_as)
        about = item.printed.title + (f" (with runs of {', '.join(shared)})" if shared else "")
        table.add_row(item.name, about, str(len(item.printed.rows)), *trials)
    console = Console()
    console.print(table)
    console.print(
        "numbers: how many the paper prints; smoke, small, full: trials of its own, rows of programs", style="dim"
    )


def _planned_work(item: Item, scale: str) -> str:
    """Return the number of trials and rows of an item at a scale, without those of other items' runs."""
    from leakscope_papers.planned import trials_of
    from leakscope_papers.scales import parts_at, rows_at, scenario_at

    trials = rows = 0
    for part in parts_at(item, scale):
        if part.program:
            rows += len(rows_at(item, part, scale))
        elif not part.same_as:
            cells = {cell.id: cell.settings for cell in scenario_at(item, part, scale).cells()}
            trials += sum(map(trials_of, cells.values()))
    return ", ".join([f"{trials:,}"] * bool(trials) + [count(rows, "row")] * bool(rows))


def run(
    context: typer.Context,
    items: Annotated[
        list[str],
        typer.Argument(
            help="Items such as cpl-table-2, a paper (cpl, mixing, sme, spn, ats), or all.", show_default=False
        ),
    ],
    scale: Annotated[str, typer.Option(help="smoke, small or full.")] = "smoke",
    out: Out = OUT,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only these parts of the items.", show_default=False)
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Your own copy of a data set instead of its substitute: femnist=PATH.", show_default=False),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most this many trials per cell; the command without it runs the rest.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run and write nothing.")] = False,
    engine: Annotated[str, typer.Option(help="local (uses the cores), serial, or ray (extra 'ray').")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    device: Device = "auto",
    workers: Workers = None,
    memory: Annotated[str | None, typer.Option(help="Memory limit of the running chunks, such as 4G.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    log_json: Annotated[Path | None, typer.Option(help="Append every event to this file as a line of JSON.")] = None,
) -> None:
    """Run items of papers at a scale: all trials and rows that are not in the run directory yet."""
    limit = parse_memory(memory)
    if not dry_run or device == "auto":  # a run on a GPU may be planned without one
        device = choose_device(device, quiet=quiet)
    chosen = make_engine(engine, address, workers)
    from leakscope_papers.scales import scenario_at

    _use_copies(context, data or [])
    work = _work(items, scale, out, only or [])
    if data:
        _check_use(list(work.values()), scale)
    given = _given(out, only or [], engine, device, workers, memory, trials) + [
        w for one in data or [] for w in ("--data", one)
    ]
    again = shlex.join(["leakscope", "paper", "run", *items, "--scale", scale, *given])
    if dry_run:
        _describe(work, scale, device, trials)
        return
    for number, (directory, (item, part)) in enumerate(work.items(), start=1):
        title = f"{item.name}, {part.name}, {scale} ({number} of {len(work)})"
        if part.program and trials is not None:
            typer.echo(f"{directory}: left out, because a program has no trials that --trials could limit", err=True)
        elif part.program:
            rows = _run_program(item, part, scale, directory, again, title, device=device, quiet=quiet)
            if not quiet:
                typer.echo(f"{directory}: {rows}")
        else:
            scenario = scenario_at(item, part, scale, most=trials)
            progress = RunProgress(title, quiet=quiet, log=log_json)
            done = run_with_progress(
                scenario, directory, again, progress, engine=chosen, device=device, memory=limit, workers=workers
            )
            if done.left:
                _stopped(title, again)
            if not quiet:
                typer.echo(f"{directory}: {count(done.wanted, 'trial')}, {done.landed:,} of them now")
    if not quiet:
        typer.echo(f"all done; leakscope paper report {shlex.quote(str(out))}")


def _describe(work: dict[Path, tuple[Item, Part]], scale: str, device: str, trials: int | None) -> None:
    """Print what would be run, how long it takes, and what that is estimated from."""
    from leakscope.cli.text import duration
    from leakscope_papers.estimates import seconds_of
    from leakscope_papers.scales import rows_at, scenario_at

    whole = 0.0
    for directory, (item, part) in work.items():
        if part.program and trials is not None:
            continue
        size = (
            f"{count(len(rows_at(item, part, scale)), 'row')} of program {part.program}"
            if part.program
            else count(scenario_at(item, part, scale, most=trials).cell_count, "cell")
        )
        guess = seconds_of(item, part, scale, gpu=device != "cpu", most=trials)
        whole += guess.seconds
        typer.echo(f"{directory}: {size}; about {duration(guess.seconds)} ({guess.source})")
    if len(work) > 1:
        typer.echo(f"in all about {duration(whole)}")


def _use_copies(context: typer.Context, given: list[str]) -> None:
    """Load data sets from the user's copies, given as NAME=PATH, until the command ends."""
    from leakscope.core.errors import InputError
    from leakscope.core.registry import lookup
    from leakscope.data import using
    from leakscope_papers.scales import FEMNIST

    copies = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or not path:
            raise InputError(f"--data must be NAME=PATH, such as femnist=leaf/data/femnist, got {one!r}")
        copies[lookup({FEMNIST: None}, name, "data set with a stand-in") or name] = Path(path)
    context.with_resource(using(copies))


def _check_use(parts: list[tuple[Item, Part]], scale: str) -> None:
    """Raise if no part runs on FEMNIST, so that the user's copy would be ignored."""
    from leakscope.core.errors import InputError
    from leakscope_papers.scales import FEMNIST, data_sets, settings_at

    if not any(FEMNIST in data_sets(settings_at(item, part, scale)) for item, part in parts):
        raise InputError(f"--data: no part of these items runs on {FEMNIST} at scale {scale}")


def _run_program(
    item: Item, part: Part, scale: str, directory: Path, again: str, title: str, *, device: str, quiet: bool
) -> str:
    """Return a message on how many rows exist after the program of a part has run, and how many are new."""
    from leakscope.core.provenance import gather_facts
    from leakscope_papers.programs import find_program
    from leakscope_papers.programs.rows import keeping
    from leakscope_papers.scales import rows_at, settings_at

    settings, wanted = settings_at(item, part, scale), len(rows_at(item, part, scale))

    def say(line: str) -> None:
        if not quiet:
            typer.echo(printable(line), err=True)

    say(f"{title}: {count(wanted, 'row')} of program {part.program}")
    with keeping(directory, settings, gather_facts(again, device)) as keep:
        keep.on_add = lambda key: say(f"  {len(keep.rows)} of {wanted}: {key}")
        try:
            find_program(part.program)(settings, keep, say, device)
        except KeyboardInterrupt:
            _stopped(title, again)
        return f"{count(len(keep.rows), 'row')}, {keep.added:,} of them now"


def _stopped(title: str, again: str) -> NoReturn:
    sys.stderr.write(f"leakscope: stopped at {title}; finished chunks are saved; continue with: {again}\n")
    raise typer.Exit(130)


def _work(names: list[str], scale: str, out: Path, only: list[str]) -> dict[Path, tuple[Item, Part]]:
    """Return the runs to make, each once, by directory; raises for unknown names and missing data before anything runs."""
    from leakscope.core.registry import lookup
    from leakscope_papers.items import choose_items, home_of
    from leakscope_papers.scales import SCALES, check_data, parts_at, run_directory

    lookup(dict.fromkeys(SCALES), scale, "--scale")
    items = choose_items(names)
    known = {part.name: part for item in items for part in parts_at(item, scale)}
    for name in only:
        lookup(known, name, f"part at scale {scale}")
    check_data(items, scale, only)
    return {
        run_directory(out, item, part, scale): home_of(item, part)
        for item in items
        for part in parts_at(item, scale)
        if not only or part.name in only
    }


def _given(
    out: Path, only: list[str], engine: str, device: str, workers: int | None, memory: str | None, trials: int | None
) -> list[str]:
    """Return the options of a run that are not at their default, for the command that resumes it."""
    usual = {"--out": (str(out), str(OUT)), "--engine": (engine, "local"), "--device": (device, "cpu")}
    words = [word for option, (value, normal) in usual.items() if value != normal for word in (option, value)]
    words += [word for part in only for word in ("--only", part)]
    words += ["--workers", str(workers)] if workers else []
    words += ["--trials", str(trials)] if trials else []
    return words + (["--memory", memory] if memory else [])
