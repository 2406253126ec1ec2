"""Progress of long commands: a live bar in a terminal, plain lines without one."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from leakscope.cli.text import count, duration, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from leakscope.attacks.engine.state import Progress
    from leakscope.training import Point

LINE_EVERY, LINE_AT_LEAST = 5.0, 60.0  # seconds between two lines: a tenth of the time so far, within these


def print_lines(*, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that prints a line to stderr; with `quiet`, one that prints nothing."""

    def line(text: str) -> None:
        if not quiet:
            sys.stderr.write(printable(text) + "\n")

    return line


@contextmanager
def stop_on_interrupt(unit: str, say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield whether to stop after this `unit` of work, which the first Ctrl-C asks for; the second stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(RuntimeError):  # the signal may come in the middle of a write to the same file
            say(f"stopping after {unit}; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


class StatusBar:
    """A bar with its state in a terminal; without one, the state as a line from time to time."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console

        self.quiet = quiet
        self.console = Console(stderr=True, quiet=quiet, markup=False, emoji=False, highlight=False)
        self.bar: RichProgress | None = None
        self.task: TaskID | None = None
        if self.console.is_terminal and not quiet:
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            state = Column(ratio=1, no_wrap=True, overflow="ellipsis")
            text = TextColumn("{task.fields[state]}", markup=False, table_column=state)
            self.bar = Progress(BarColumn(bar_width=12), text, console=self.console, expand=True)
        self.began = self.printed = time.monotonic()

    def start(self) -> None:
        """Show the bar, without a task yet."""
        if self.bar is not None:
            self.bar.start()

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()

    def begin(self, total: int, done: int = 0) -> None:
        """Begin to count."""
        if self.bar is not None:
            self.task = self.bar.add_task("", total=total, completed=done, state="")
        self.began = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line."""
        if not self.quiet:
            self.console.print(printable(line), soft_wrap=True)

    def update(self, *state: str, done: int | None = None, line: bool = True, force: bool = False) -> None:
        """Show the state; without a terminal as a line if one is due (or by `force`), never unless `line`."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, state="\n".join(state).strip())
            return
        now = time.monotonic()
        if line and (force or now - self.printed >= min(max(LINE_EVERY, (now - self.began) / 10), LINE_AT_LEAST)):
            self.printed = now
            self.say(", ".join(part for part in state if part))


class TrainingProgress:
    """The progress of a training, round by round."""

    def __init__(self, title: str, rounds: int, *, quiet: bool) -> None:
        self.title, self.rounds = title, rounds
        self.status = StatusBar(quiet=quiet)
        self.first_round = 0
        self.state = ""

    def __enter__(self) -> TrainingProgress:
        self.status.say(f"{self.title}: {count(self.rounds, 'round')}")
        self.status.start()
        self.status.begin(self.rounds)
        return self

    def __exit__(self, *_: object) -> None:
        self.status.stop()

    def say(self, line: str) -> None:
        """Show a sentence."""
        self.status.say(line)

    def round_ended(self, point: Point) -> None:
        """Show where the training stands after a round."""
        if not self.first_round and point.round:
            self.first_round = point.round - 1
        accuracy = point.accuracy
        parts = [f"round {point.round}/{self.rounds}", count(point.answered, "answer")]
        parts += [f"accuracy {accuracy.value:.1%}"] if accuracy is not None else []
        played = point.round - self.first_round
        if played > 0 and point.round < self.rounds:
            seconds = (time.monotonic() - self.status.began) / played
            parts.append(f"{duration(seconds * (self.rounds - point.round))} left")
        self.state = ", ".join(parts)
        self.status.update(self.state, done=point.round, force=point.round in (0, self.rounds))

    def inside_round(self, number: int, done: int, total: int) -> None:
        """Show how many clients of a round are done."""
        state = f"{self.state}; round {number}: {done}/{total} clients".removeprefix("; ")
        self.status.update(state, line=False)


class AttackBars:
    """A live bar for each attack; without a terminal, a line when an attack is done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(stderr=True)
        self.bars = RichProgress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
        )
        self.tasks: dict[str, TaskID] = {}
        self.done: set[str] = set()

    def __enter__(self) -> AttackBars:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def update(self, name: str, progress: Progress) -> None:
        """Show where an attack stands."""
        if not self.console.is_terminal:
            if progress.done == progress.total and name not in self.done:
                self.done.add(name)
                self.console.print(f"{name}: {progress.done} done, {progress.converged} converged", highlight=False)
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=progress.total, note="")
        note = progress.note or f"step {progress.iteration}, {progress.converged} converged"
        self.bars.update(self.tasks[name], completed=progress.done, note=note)
