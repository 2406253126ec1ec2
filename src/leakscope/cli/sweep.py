"""`leakscope run` and `leakscope schema`."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from leakscope.cli.app import app
from leakscope.cli.progress import Dialogue, at_most, count, printable
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.scenario import Scenario
    from leakscope.scenario.axes import Axis
    from leakscope.sweep import Chunk, Done
    from leakscope.sweep.engines import Engine

ENGINES = ("local", "serial", "ray")
DEVICES = ("cpu", "cuda")
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes at a time; on a GPU they share it (docs/scale.md). The cores, or one, if not given."
    ),
]
MOST_LINES = 40
MOST_POINTS = 12
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The scenario, a YAML file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Run directory; runs/<name of the file> if not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    engine: Annotated[str, typer.Option(help="local (uses the cores), serial, or ray (extra 'ray').")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; a local one is started if not given.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Workers = None,
    memory: Annotated[str | None, typer.Option(help="Most memory for chunks in hand, such as 4G.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    log_json: Annotated[Path | None, typer.Option(help="Write every event as a line of JSON.")] = None,
) -> None:
    """Run a scenario: all its trials, or those that the run directory still lacks."""
    limit = parse_memory(memory)
    check_device(device)
    chosen = make_engine(engine, address, workers)
    from leakscope.scenario import read_scenario

    scenario = read_scenario(file)
    directory = out or Path("runs") / file.stem
    if dry_run:
        tell = partial(typer.echo, err=True) if not quiet else lambda _: None  # measuring may take a while
        typer.echo(describe_plan(scenario, scenario.name or file.stem, directory, device, limit, workers, tell))
        return
    again = command_of(file, out, engine, address, device, workers, memory)
    dialogue = Dialogue(scenario.name or file.stem, quiet=quiet, log=log_json)
    done = carry_out(scenario, directory, again, dialogue, engine=chosen, device=device, memory=limit, workers=workers)
    if done.left:
        there = f"{done.wanted - done.left:,} of {count(done.wanted, 'trial')}"
        _stop(f"stopped with {there} done and saved; go on with: {again}")
    if not quiet:
        where = shlex.quote(str(directory))
        typer.echo(f"{directory}: {count(done.wanted, 'trial')}, {done.landed:,} of them now; leakscope show {where}")


def carry_out(
    scenario: Scenario,
    directory: Path,
    again: str,
    dialogue: Dialogue,
    *,
    engine: Engine | None,
    device: str,
    memory: int | None,
    workers: int | None = None,
) -> Done:
    """Return how a run ended; every trouble but a mistake in the input ends with `again`, the command to go on with."""
    from leakscope.sweep import run_scenario
    from leakscope.sweep.engines import LostChunkError

    try:
        with dialogue, _interrupt(dialogue.said) as asked:
            done = run_scenario(
                scenario,
                directory,
                engine=engine,
                device=device,
                memory=memory,
                workers=workers,
                command=again,
                watcher=dialogue,
                stop=lambda: bool(asked),
            )
            dialogue.ended(done)
    except (LostChunkError, OSError) as error:
        raise InputError(f"{_trouble(error, directory)}; what has landed is saved; go on with: {again}") from None
    except KeyboardInterrupt:
        _stop(f"stopped at once; what has landed is saved; go on with: {again}")
    return done


@app.command()
def schema(
    kind: Annotated[str, typer.Option(help="Whose schema: scenario, train or audit.")] = "scenario",
    out: Annotated[
        Path | None, typer.Option(help="File to write; the terminal if not given.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON schema of a scenario, training or audit file, so that editors complete it."""
    import json

    from leakscope.cli.schemas import schema_of

    text = json.dumps(schema_of(kind), indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {out} ({error.strerror})") from None


def parse_memory(text: str | None) -> int | None:
    """Return a size in bytes.

    >>> parse_memory("1.5G")
    1610612736
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if not found or float(found[1]) * UNITS[found[2].upper()] < 1:
        raise InputError(f"--memory must be a size such as 500M or 4G, got {text!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def check_device(name: str) -> None:
    """Raise if there is no such device here."""
    if name not in DEVICES:
        raise InputError(f"--device must be {' or '.join(DEVICES)}, got {name!r}")
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("--device cuda: PyTorch finds no CUDA device here; --device cpu runs everywhere")


def make_engine(name: str, address: str | None, workers: int | None = None) -> Engine | None:
    """Return the engine of that name; None leaves the choice to the run."""
    if name not in ENGINES:
        raise InputError(f"--engine must be one of {', '.join(ENGINES)}, got {name!r}")
    if address is not None and name != "ray":
        raise InputError(f"--address is for --engine ray, got it with --engine {name}")
    if workers is not None and name != "local":
        raise InputError(f"--workers is for --engine local, got it with --engine {name}")
    if name == "ray":
        from leakscope.integrations.ray import ray_engine

        return ray_engine(address)
    if name == "serial":
        from leakscope.sweep.engines import serial

        return serial
    return None


def command_of(
    file: Path,
    out: Path | None,
    engine: str,
    address: str | None,
    device: str,
    workers: int | None,
    memory: str | None,
) -> str:
    """Return the command that goes on with this very run, ready for a shell.

    >>> command_of(Path("my noise.yaml"), None, "serial", None, "cpu", None, None)
    "leakscope run 'my noise.yaml' --engine serial"
    """
    words = ["leakscope", "run", str(file)]
    options = {
        "--out": (out, None),
        "--engine": (engine, "local"),
        "--address": (address, None),
        "--device": (device, "cpu"),
        "--workers": (workers, None),
        "--memory": (memory, None),
    }
    for option, (value, usual) in options.items():
        words += [option, str(value)] if value != usual else []
    return shlex.join(words)


def describe_plan(
    scenario: Scenario,
    title: str,
    directory: Path,
    device: str,
    memory: int | None,
    workers: int | None,
    say: Callable[[str], None],
) -> str:
    """Return what a run would do, in words."""
    from leakscope.store import Run
    from leakscope.sweep.driver import naming_lines, sayings, unfold
    from leakscope.sweep.plan import make_plan

    sweep = unfold(scenario)
    with naming_lines(scenario, sweep.cells):
        plan = make_plan(sweep.cells, sweep.trials, device=device, memory=memory, workers=workers, say=say)
    number = [count(len(sweep.trials), "trial"), count(len(sweep.cells), "cell"), count(len(plan.chunks), "chunk")]
    lines = [f"{title}: {number[0]} in {number[1]}, {number[2]}", *(_axis_line(axis) for axis in scenario.axes)]
    groups = [list(group) for _, group in itertools.groupby(plan.chunks, key=lambda c: c.name.rpartition("-")[0])]
    attacks = [group for group in groups if not group[0].baseline]
    lines += [_group_line(group) for group in attacks[:MOST_LINES]]
    lines += [f"  and {len(attacks) - MOST_LINES} more groups"] if len(attacks) > MOST_LINES else []
    baselines = dict.fromkeys(str(cell.axes["attack"]) for cell in sweep.cells if cell.baseline)
    if baselines:
        own = [chunk for chunk in plan.chunks if chunk.baseline]
        lines.append(f"  null baselines: {', '.join(baselines)}: {_work(own)}")
    if Run.exists(directory):
        there = len(Run.open(directory).done() & {trial.id for trial in sweep.trials})
        lines.append(f"{directory} holds {there:,} of these trials already")
    lines += sayings(sweep.cells)
    lines.append(f"{at_most(plan.seconds)} for all of them if none stops early; nothing was written")
    return "\n".join(printable(line) for line in lines)


def _axis_line(axis: Axis) -> str:
    from leakscope.report.cells import axis_value_text

    said = [axis_value_text(label) for label in axis.labels]
    more = f", ... ({len(said)} in all)" if len(said) > MOST_POINTS else ""
    return f"  axis {axis.name}: {', '.join(said[:MOST_POINTS])}{more}"


def _group_line(chunks: list[Chunk]) -> str:
    """Return a line for the chunks of one group, which share all but their trials."""
    first, cells = chunks[0], {cell for chunk in chunks for cell in chunk.cells}
    name = first.name.rpartition("-")[0]
    how = f"form {first.form}, {count(first.threads, 'thread')} each"
    return f"  group {name}: {count(len(cells), 'cell')}, {_work(chunks)}, {how}"


def _work(chunks: list[Chunk]) -> str:
    """Return how many trials there are in how many chunks."""
    sizes = [len(chunk.trials) for chunk in chunks]
    most = f" of at most {max(sizes)}" if len(chunks) > 1 else ""
    return f"{count(sum(sizes), 'trial')} in {count(len(chunks), 'chunk')}{most}"


@contextmanager
def _interrupt(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Turn the first Ctrl-C into a wish to stop after the chunks in hand; the second stops at once."""
    asked: list[int] = []

    def wish(number: int, frame: object) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(RuntimeError):  # the signal may come in the middle of a write to the same file
            say("stopping after the chunks in hand; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _trouble(error: Exception, directory: Path) -> str:
    """Return what went wrong with the machine, in one line; the store has its own lines for what it writes."""
    from leakscope.store.disk import is_full

    return (
        f"disk full while working in {directory}"
        if isinstance(error, OSError) and is_full(error, directory)
        else str(error)
    )


def _stop(line: str) -> NoReturn:
    sys.stderr.write(f"leakscope: {line}\n")
    raise typer.Exit(130)
