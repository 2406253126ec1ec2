"""`leakscope train`: a federation from a file, with its learning curve."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakscope.cli.app import app
from leakscope.cli.progress import count, duration, printable
from leakscope.cli.sweep import check_device
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.training import Point, Result

LINE_EVERY = 5.0  # seconds between two lines where there is no terminal
PAGE = "index.html"


@app.command()
def train(
    file: Annotated[Path, typer.Argument(help="The training, a YAML file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Directory; runs/<name of the file> if not given.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    keep_private: Annotated[
        bool,
        typer.Option(
            "--keep-private",
            help="Write the clients' private heads to DIR/private/, so that a training that is cut can go on.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Train a federation: accuracy per round, checkpoints to attack, a page with the learning curve."""
    check_device(device)
    from leakscope.core.provenance import gather_facts
    from leakscope.training import read_training, run_training

    training = read_training(file)
    directory = out or Path("runs") / file.stem
    again = _command(file, out, device, keep_private=keep_private)
    with Watching(training.name or file.stem, training.rounds, quiet=quiet) as watching, interrupt() as asked:
        result = run_training(
            training,
            directory,
            device=device,
            keep_private=keep_private,
            facts=gather_facts(again, device),
            tell=watching.tell,
            say=watching.say,
            inside=watching.inside,
            stop=lambda: bool(asked),
        )
    page = _write_page(result, directory, again)
    if result.stopped:
        sys.stderr.write(f"leakscope: stopped after round {result.rounds}, {_way_on(result, again)}\n")
        raise typer.Exit(130)
    if not quiet:
        typer.echo(printable(f"{_ending(result)}; page: {page}"))
    if result.diverged:
        raise typer.Exit(1)


def _way_on(result: Result, command: str) -> str:
    if result.resumable:
        return f"saved; go on with: {command}"
    return "private heads were not kept (--keep-private), so it cannot be gone on with; page and checkpoints are saved"


def _ending(result: Result) -> str:
    measured = [point for point in result.curve if point.accuracy is not None]
    said = f"{count(result.rounds, 'round')}"
    if result.diverged:
        return f"{said}: the weights became NaN or infinite; a smaller learning rate may help"
    last = measured[-1].accuracy
    if last is None:
        return said
    return f"{said}: accuracy {last.value:.1%} (95 % {last.low:.1%} to {last.high:.1%}, n = {last.n:,})"


def _write_page(result: Result, directory: Path, command: str) -> Path:
    from leakscope.report.training_page import write_training

    path = directory / PAGE
    try:
        return write_training(result, path, command=command)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); the training itself is saved") from None


def _command(file: Path, out: Path | None, device: str, *, keep_private: bool = False) -> str:
    """Return the command that goes on with this very training, ready for a shell.

    >>> _command(Path("my cpl.yaml"), None, "cpu")
    "leakscope train 'my cpl.yaml'"
    >>> _command(Path("spn.yaml"), Path("runs/a"), "cpu", keep_private=True)
    'leakscope train spn.yaml --out runs/a --keep-private'
    """
    words = ["leakscope", "train", str(file)]
    words += ["--out", str(out)] if out is not None else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join([*words, *(["--keep-private"] if keep_private else [])])


class Watching:
    """A bar in a terminal, a line now and then without one."""

    def __init__(self, title: str, rounds: int, *, quiet: bool) -> None:
        from rich.console import Console

        self.title, self.rounds, self.quiet = title, rounds, quiet
        self.console = Console(stderr=True, quiet=quiet, markup=False, emoji=False, highlight=False)
        self.bar: Any = self._bar() if self.console.is_terminal and not quiet else None
        self.task: Any = None
        self.told, self.began, self.first = 0.0, time.monotonic(), 0
        self.state = ""

    def _bar(self) -> Any:
        from rich.progress import BarColumn, Progress, TextColumn

        return Progress(BarColumn(bar_width=16), TextColumn("{task.fields[state]}", markup=False), console=self.console)

    def __enter__(self) -> Watching:
        self.say(f"{self.title}: {count(self.rounds, 'round')}")
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("", total=self.rounds, state="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        if self.bar is not None:
            self.bar.stop()

    def say(self, line: str) -> None:
        """Show a sentence."""
        self.console.print(printable(line), soft_wrap=True)

    def tell(self, point: Point) -> None:
        """Show where the training stands after a round."""
        if not self.first and point.round:
            self.first = point.round - 1
        accuracy = point.accuracy
        parts = [f"round {point.round}/{self.rounds}", count(point.answered, "answer")]
        parts += [f"accuracy {accuracy.value:.1%}"] if accuracy is not None else []
        played = point.round - self.first
        if played > 0 and point.round < self.rounds:
            pace = (time.monotonic() - self.began) / played
            parts.append(f"{duration(pace * (self.rounds - point.round))} left")
        self.state = ", ".join(parts)
        if self.bar is not None:
            self.bar.update(self.task, completed=point.round, state=self.state)
        elif time.monotonic() - self.told >= LINE_EVERY or point.round in (0, self.rounds):
            self.told = time.monotonic()
            self.say(self.state)

    def inside(self, number: int, done: int, total: int) -> None:
        """Show how many clients of a round are done."""
        if self.bar is not None:
            state = f"{self.state}; round {number}: {done}/{total} clients".removeprefix("; ")
            self.bar.update(self.task, state=state)


@contextmanager
def interrupt() -> Iterator[list[int]]:
    """Turn the first Ctrl-C into a wish to stop after the round in hand; the second stops at once."""
    asked: list[int] = []

    def wish(number: int, frame: object) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        sys.stderr.write("stopping after this round; press Ctrl-C again to stop at once\n")

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
