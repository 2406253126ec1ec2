"""`leakscope run` and `leakscope schema`."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.experiments.engines import Engine
    from leakscope.experiments.scenario import Scenario
    from leakscope.experiments.sweep import Done

ENGINES = ("local", "serial", "ray")
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
    memory: Annotated[str | None, typer.Option(help="Most memory for chunks in hand, such as 4G.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    log_json: Annotated[Path | None, typer.Option(help="Write every event as a line of JSON.")] = None,
) -> None:
    """Run a scenario: all its trials, or those that the run directory still lacks."""
    from leakscope.cli.watching import Dialogue
    from leakscope.experiments.scenario import read_scenario
    from leakscope.experiments.sweep import run_scenario

    limit = parse_memory(memory)
    scenario = read_scenario(file)
    if dry_run:
        typer.echo(describe_plan(scenario, device, limit))
        return
    directory = out or Path("runs") / file.stem
    chosen = make_engine(engine, address)
    with (
        Dialogue(scenario.name or file.stem, quiet=quiet, log=log_json) as dialogue,
        _interrupt(dialogue.said) as asked,
    ):
        done = run_scenario(
            scenario,
            directory,
            engine=chosen,
            device=device,
            memory=limit,
            command=f"leakscope run {file}",
            watcher=dialogue,
            stop=lambda: bool(asked),
        )
        dialogue.ended(done)
    _conclude(done, file, directory, quiet)


@app.command()
def schema(
    out: Annotated[
        Path | None, typer.Option(help="File to write; the terminal if not given.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON schema of a scenario file, so that editors complete it."""
    import json

    from leakscope.experiments.scenario import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
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
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if not found or float(found[1]) * UNITS[found[2].upper()] < 1:
        raise InputError(f"--memory must be a size such as 500M or 4G, got {text!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def make_engine(name: str, address: str | None) -> Engine | None:
    """Return the engine of that name; None leaves the choice to the run."""
    if name not in ENGINES:
        raise InputError(f"--engine must be one of {', '.join(ENGINES)}, got {name!r}")
    if address is not None and name != "ray":
        raise InputError("--address belongs to --engine ray")
    if name == "ray":
        from leakscope.integrations.ray import ray_engine

        return ray_engine(address)
    if name == "serial":
        from leakscope.experiments.engines import serial

        return serial
    return None


def describe_plan(scenario: Scenario, device: str, memory: int | None) -> str:
    """Return what a run would do, in words."""
    from leakscope.cli.watching import duration
    from leakscope.experiments.sweep.driver import unfold
    from leakscope.experiments.sweep.plan import make_plan

    sweep = unfold(scenario)
    plan = make_plan(sweep.cells, sweep.trials, device=device, memory=memory)
    cells = [cell for cell in sweep.cells if not cell.baseline]
    lines = [
        f"{scenario.name or 'scenario'}: {len(sweep.trials):,} trials in {len(sweep.cells)} cells, {len(plan.chunks)} chunks"
    ]
    lines += [f"  axis {axis.name}: {', '.join(str(label) for label in axis.labels)}" for axis in scenario.axes]
    if len(sweep.cells) > len(cells):
        names = ", ".join(dict.fromkeys(str(c.axes["attack"]) for c in sweep.cells if c.baseline))
        lines.append(f"  null baselines: {names}")
    for chunk in plan.chunks:
        kind = "baseline" if chunk.baseline else f"form {chunk.form}"
        lines.append(
            f"  chunk {chunk.name}: {len(chunk.trials)} trials of {len(chunk.cells)} cells, {kind}, {chunk.threads} thread(s)"
        )
        if len(lines) > 40:
            lines.append(f"  ... and {len(plan.chunks) - plan.chunks.index(chunk) - 1} more chunks")
            break
    lines.append(f"at most about {duration(plan.seconds)} if no trial stops early; nothing was written")
    return "\n".join(lines)


@contextmanager
def _interrupt(say: object) -> Iterator[list[int]]:
    """Turn the first Ctrl-C into a wish to stop after the chunks in hand; the second stops at once."""
    asked: list[int] = []

    def wish(number: int, frame: object) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        if callable(say):
            say("stopping after the chunks in hand; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _conclude(done: Done, file: Path, directory: Path, quiet: bool) -> None:
    if done.left:
        sys.stderr.write(
            f"leakscope: stopped with {done.wanted - done.left} of {done.wanted} trials done and saved; go on with: "
            f"leakscope run {file} --out {directory}\n"
        )
        raise typer.Exit(130)
    if not quiet:
        typer.echo(f"{directory}: {done.wanted} trials, {done.landed} of them now; leakscope show {directory}")
