"""`leakscope run`: run the trials of a scenario."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from leakscope.cli.app import app
from leakscope.cli.options import (
    Address,
    Device,
    EngineName,
    Imports,
    LogJson,
    Memory,
    Options,
    Quiet,
    Workers,
    choose_device,
    import_components,
    make_engine,
    parse_memory,
    shell_command,
)
from leakscope.cli.progress import RunProgress, print_lines, stop_on_interrupt
from leakscope.cli.text import at_most, count, printable
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.scenario import Scenario
    from leakscope.scenario.axes import Axis
    from leakscope.sweep import Chunk, Done
    from leakscope.sweep.engines import Engine

MOST_LINES = 40
MOST_POINTS = 12


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The scenario, a YAML file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Run directory; runs/<name of the file> if not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    engine: EngineName = "local",
    address: Address = None,
    device: Device = "auto",
    workers: Workers = None,
    memory: Memory = None,
    imports: Imports = None,
    quiet: Quiet = False,
    log_json: LogJson = None,
) -> None:
    """Run a scenario: all trials that are not in the run directory yet."""
    limit = parse_memory(memory)
    import_components(imports)
    device = choose_device(device, quiet=quiet)
    chosen = make_engine(engine, address, workers)
    from leakscope.scenario import read_scenario

    directory = out or Path("runs") / file.stem
    _check_imports(directory)
    scenario = read_scenario(file)
    title = scenario.name or file.stem
    if dry_run:  # measuring may take a while
        typer.echo(describe_plan(scenario, title, directory, device, limit, workers, print_lines(quiet=quiet)))
        return
    options: Options = {
        "--out": (out, None),
        "--engine": (engine, "local"),
        "--address": (address, None),
        "--device": (device, "cpu"),
        "--workers": (workers, None),
        "--memory": (memory, None),
        "--import": (imports, None),
    }
    again = shell_command(["run", file], options)
    progress = RunProgress(title, quiet=quiet, log=log_json)
    done = run_with_progress(
        scenario, directory, again, progress, engine=chosen, device=device, memory=limit, workers=workers
    )
    if done.left:
        stored = f"{done.wanted - done.left:,} of {count(done.wanted, 'trial')}"
        _stop(f"stopped with {stored} done and saved; continue with: {again}")
    if not quiet:
        where = shlex.quote(str(directory))
        typer.echo(f"{directory}: {count(done.wanted, 'trial')}, {done.landed:,} of them now; leakscope show {where}")


def _check_imports(directory: Path) -> None:
    """Refuse a run whose registered components are not imported now."""
    from leakscope.core.plugins import check_imports
    from leakscope.store import Run

    if Run.exists(directory):
        check_imports(directory, Run.open(directory).facts())


def run_with_progress(
    scenario: Scenario,
    directory: Path,
    again: str,
    progress: RunProgress,
    *,
    engine: Engine | None,
    device: str,
    memory: int | None,
    workers: int | None = None,
) -> Done:
    """Return how a run ended; every error except input errors names `again`, the command to continue with."""
    from leakscope.store.disk import is_full
    from leakscope.sweep import run_scenario
    from leakscope.sweep.engines import LostChunkError

    try:
        with progress, stop_on_interrupt("the running chunks", progress.message) as stop:
            done = run_scenario(
                scenario,
                directory,
                engine=engine,
                device=device,
                memory=memory,
                workers=workers,
                command=again,
                watcher=progress,
                stop=stop,
            )
            progress.ended(done)
    except (LostChunkError, OSError) as error:  # the store reports its own write errors
        full = isinstance(error, OSError) and is_full(error, directory)
        problem = f"disk full while working in {directory}" if full else str(error)
        raise InputError(f"{problem}; finished chunks are saved; continue with: {again}") from None
    except KeyboardInterrupt:
        _stop(f"stopped at once; finished chunks are saved; continue with: {again}")
    return done


def describe_plan(
    scenario: Scenario,
    title: str,
    directory: Path,
    device: str,
    memory: int | None,
    workers: int | None,
    say: Callable[[str], None],
) -> str:
    """Return in words what a run would do."""
    from leakscope.store import Run
    from leakscope.sweep.driver import naming_lines, remarks, unfold
    from leakscope.sweep.plan import make_plan

    sweep = unfold(scenario)
    with naming_lines(scenario, sweep.cells):
        plan = make_plan(sweep, sweep.trials, device=device, memory=memory, workers=workers, say=say)
    number = [count(len(sweep.trials), "trial"), count(len(sweep.cells), "cell"), count(len(plan.chunks), "chunk")]
    lines = [f"{title}: {number[0]} in {number[1]}, {number[2]}", *(_axis_line(axis) for axis in scenario.axes)]
    groups = [list(group) for _, group in itertools.groupby(plan.chunks, key=lambda c: c.name.rpartition("-")[0])]
    attacks = [group for group in groups if not group[0].baseline]
    lines += [_group_line(group) for group in attacks[:MOST_LINES]]
    lines += [f"  and {len(attacks) - MOST_LINES} more groups"] if len(attacks) > MOST_LINES else []
    baselines = dict.fromkeys(str(cell.axes["attack"]) for cell in sweep.cells if cell.baseline)
    if baselines:
        chunks = [chunk for chunk in plan.chunks if chunk.baseline]
        lines.append(f"  null baselines: {', '.join(baselines)}: {_work(chunks)}")
    if Run.exists(directory):
        stored = len(Run.open(directory).done() & {trial.id for trial in sweep.trials})
        lines.append(f"{directory} holds {stored:,} of these trials already")
    lines += remarks(sweep)
    lines.append(f"{at_most(plan.seconds)} for all of them if none stops early; nothing was written")
    return "\n".join(printable(line) for line in lines)


def _axis_line(axis: Axis) -> str:
    from leakscope.report.cells import axis_value_text

    labels = [axis_value_text(label) for label in axis.labels]
    more = f", ... ({len(labels)} in all)" if len(labels) > MOST_POINTS else ""
    return f"  axis {axis.name}: {', '.join(labels[:MOST_POINTS])}{more}"


def _group_line(chunks: list[Chunk]) -> str:
    """Return a line for the chunks of one group, which differ only in their trials."""
    first, cells = chunks[0], {cell for chunk in chunks for cell in chunk.cells}
    name = first.name.rpartition("-")[0]
    how = f"form {first.form}, {count(first.threads, 'thread')} each"
    return f"  group {name}: {count(len(cells), 'cell')}, {_work(chunks)}, {how}"


def _work(chunks: list[Chunk]) -> str:
    """Return the number of trials and chunks in words."""
    sizes = [len(chunk.trials) for chunk in chunks]
    most = f" of at most {max(sizes)}" if len(chunks) > 1 else ""
    return f"{count(sum(sizes), 'trial')} in {count(len(chunks), 'chunk')}{most}"


def _stop(line: str) -> NoReturn:
    sys.stderr.write(f"leakscope: {line}\n")
    raise typer.Exit(130)
