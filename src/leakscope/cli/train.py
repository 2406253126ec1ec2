"""`leakscope train`: train a federation from a file, with its learning curve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import (
    Device,
    Imports,
    KeepPrivate,
    Options,
    Quiet,
    choose_device,
    import_components,
    shell_command,
    writing,
)
from leakscope.cli.progress import TrainingProgress, print_lines, stop_on_interrupt
from leakscope.cli.text import count, printable

if TYPE_CHECKING:
    from leakscope.training import Result, Training

PAGE = "index.html"


@app.command()
def train(
    file: Annotated[Path, typer.Argument(help="The training, a YAML file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Directory; runs/<name of the file> if not given.")] = None,
    device: Device = "auto",
    keep_private: KeepPrivate = False,
    imports: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Train a federation: accuracy per round, checkpoints to attack, a page with the learning curve."""
    device = choose_device(device, quiet=quiet)
    import_components(imports)
    from leakscope.core.plugins import check_imports
    from leakscope.training import read_training
    from leakscope.training.result import facts_of

    directory = out or Path("runs") / file.stem
    check_imports(directory, facts_of(directory))
    training = read_training(file)
    options: Options = {"--out": (out, None), "--device": (device, "cpu"), "--keep-private": (keep_private, False)}
    options = {**options, "--import": (imports, None)}
    again = shell_command(["train", file], options)
    title = training.name or file.stem
    result = train_with_progress(
        training, title, directory, again, device=device, keep_private=keep_private, quiet=quiet
    )
    page = _write_page(result, directory, again)
    if result.stopped:
        sys.stderr.write(f"leakscope: stopped after round {result.rounds}, {_way_on(result, again)}\n")
        raise typer.Exit(130)
    if not quiet:
        typer.echo(printable(f"{_ending(result)}; page: {page}"))
    if result.diverged:
        raise typer.Exit(1)


def train_with_progress(
    training: Training, title: str, directory: Path, command: str, *, device: str, keep_private: bool, quiet: bool
) -> Result:
    """Return how a training ended; the first Ctrl-C stops it after the current round."""
    from leakscope.core.provenance import gather_facts
    from leakscope.training import run_training

    with (
        TrainingProgress(title, training.rounds, quiet=quiet) as progress,
        stop_on_interrupt("this round", print_lines()) as stop,
    ):
        return run_training(
            training,
            directory,
            device=device,
            keep_private=keep_private,
            facts=gather_facts(command, device),
            on_round=progress.round_ended,
            say=progress.say,
            inside=progress.inside_round,
            stop=stop,
        )


def _way_on(result: Result, command: str) -> str:
    if result.resumable:
        return f"saved; continue with: {command}"
    return "private heads were not kept (--keep-private), so it cannot be gone on with; page and checkpoints are saved"


def _ending(result: Result) -> str:
    measured = [point for point in result.curve if point.accuracy is not None]
    rounds = count(result.rounds, "round")
    if result.diverged:
        return f"{rounds}: the weights became NaN or infinite; a smaller learning rate may help"
    last = measured[-1].accuracy
    if last is None:
        return rounds
    return f"{rounds}: accuracy {last.value:.1%} (95 % {last.low:.1%} to {last.high:.1%}, n = {last.n:,})"


def _write_page(result: Result, directory: Path, command: str) -> Path:
    from leakscope.report.training_page import write_training

    path = directory / PAGE
    with writing(path, "; the training itself is saved"):
        return write_training(result, path, command=command)
