"""Progress of long commands: a live bar in a terminal, otherwise plain lines."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from leakscope.cli.text import at_most, count, duration, pace, printable
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from leakscope.attacks.engine.state import Progress
    from leakscope.store import Landing
    from leakscope.sweep import Done
    from leakscope.sweep.engines import Note
    from leakscope.training import Point

LINE_EVERY, LINE_AT_LEAST = 5.0, 60.0  # seconds between lines: a tenth of the elapsed time, within these


def print_lines(*, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that prints a line to stderr; with `quiet`, one that prints nothing."""

    def line(text: str) -> None:
        if not quiet:
            sys.stderr.write(printable(text) + "\n")

    return line


@contextmanager
def stop_on_interrupt(unit: str, say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether to stop after this `unit` of work: after the first Ctrl-C; the second stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(
            RuntimeError, OSError
        ):  # the signal may interrupt a write to the same file, or the terminal is gone
            say(f"stopping after {unit}; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, *heeded_signals())}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heeded_signals() -> list[signal.Signals]:
    """Return the signals that end a command like Ctrl-C: SIGTERM, and SIGHUP unless `nohup` ignores it."""
    return [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]


class StatusBar:
    """A progress bar with a status in a terminal; otherwise the status as a line from time to time."""

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
        """Show the bar without a task."""
        if self.bar is not None:
            self.bar.start()

    def stop(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()

    def begin(self, total: int, done: int = 0) -> None:
        """Start counting."""
        if self.bar is not None:
            self.task = self.bar.add_task("", total=total, completed=done, state="")
        self.began = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line."""
        if not self.quiet:
            self.console.print(printable(line), soft_wrap=True)

    def update(self, *state: str, done: int | None = None, line: bool = True, force: bool = False) -> None:
        """Show the status; without a terminal as a line if `line` and one is due (or `force`)."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, state="\n".join(state).strip())
            return
        now = time.monotonic()
        if line and (force or now - self.printed >= min(max(LINE_EVERY, (now - self.began) / 10), LINE_AT_LEAST)):
            self.printed = now
            self.say(", ".join(part for part in state if part))


class TrainingProgress:
    """Progress of a training by round."""

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
        """Print a message."""
        self.status.say(line)

    def round_ended(self, point: Point) -> None:
        """Show the state after a round."""
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
        """Show how many clients of a round have finished."""
        state = f"{self.state}; round {number}: {done}/{total} clients".removeprefix("; ")
        self.status.update(state, line=False)


class AttackBars:
    """A progress bar per attack; without a terminal, a line when an attack ends."""

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
        """Show the progress of an attack."""
        if not self.console.is_terminal:
            if progress.done == progress.total and name not in self.done:
                self.done.add(name)
                self.console.print(f"{name}: {progress.done} done, {progress.converged} converged", highlight=False)
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=progress.total, note="")
        note = progress.note or f"step {progress.iteration}, {progress.converged} converged"
        self.bars.update(self.tasks[name], completed=progress.done, note=note)


NOTE_EVERY = 0.5
IN_HAND = 4


class RunProgress:
    """Progress of a run of trials, in the terminal and in a log of JSON lines."""

    def __init__(self, title: str, *, quiet: bool = False, log: Path | None = None) -> None:
        """Open the log and create the bar; nothing is shown before `__enter__`."""
        self.title = title
        self.log: IO[str] | None = None
        if log is not None:
            try:
                self.log = log.open("a", encoding="utf-8")
            except OSError as error:
                raise InputError(f"--log-json {log} cannot be written ({error.strerror})") from None
        self.status = StatusBar(quiet=quiet)
        self.notes: dict[str, Note] = {}
        self.stored: set[str] = set()
        self.wanted, self.finished, self.landed_now = 0, 0, 0
        self.most_seconds = 0.0
        self.outcomes: dict[str, int] = {}
        self.warnings = warnings.catch_warnings()
        self.logged = time.monotonic()

    def __enter__(self) -> RunProgress:
        self.warnings.__enter__()
        warnings.showwarning = self._warned
        self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.status.stop()
        self.warnings.__exit__(kind, error, trace)
        if kind is not None:
            self._write("failed", error=kind.__name__, line=str(error), done=self.finished, wanted=self.wanted)
        self._close()

    def planned(self, wanted: int, before: int, chunks: int, seconds: float) -> None:
        """Show the amount of work."""
        self.wanted, self.finished, self.most_seconds = wanted, before, seconds
        self._write("planned", wanted=wanted, before=before, chunks=chunks, seconds=seconds)
        stored = f", {before} of them done before" if before else ""
        most = f", {at_most(seconds)}" if seconds else ""
        self.status.say(f"{self.title}: {count(wanted, 'trial')}{stored}; {count(chunks, 'chunk')} to run{most}")
        self.status.begin(wanted, before)

    def noted(self, note: Note) -> None:
        """Show the progress of running chunks; a note without numbers is a message, such as a lost worker."""
        if note.note and not note.total:
            self.message(f"{note.chunk}: {note.note}")
        if not note.total or note.chunk in self.stored:  # on a cluster a note may arrive after its chunk
            return
        self.notes[note.chunk] = note
        now = time.monotonic()
        if now - self.logged >= NOTE_EVERY:
            self.logged = now
            self._write(
                "note", chunk=note.chunk, done=note.done, total=note.total, iteration=note.iteration, note=note.note
            )
        self._refresh()

    def landed(self, landing: Landing, done: Done) -> None:
        """Show a stored chunk."""
        self.notes.pop(landing.chunk, None)
        self.stored.add(landing.chunk)
        self.finished, self.landed_now = done.before + done.landed, done.landed
        self.outcomes = dict(done.outcomes)
        self._write(
            "landed",
            chunk=landing.chunk,
            trials=len(landing.records),
            seconds=landing.seconds,
            done=self.finished,
            wanted=self.wanted,
            outcomes=self.outcomes,
        )
        self._refresh(force=self.finished == self.wanted)

    def message(self, line: str) -> None:
        """Print and log a message."""
        self._write("said", line=line)
        self.status.say(line)

    def ended(self, done: Done) -> None:
        """Log how the run ended and how long its parts took."""
        names = ("wanted", "before", "landed", "left", "outcomes", "attack_seconds")
        facts: dict[str, object] = {name: getattr(done, name) for name in names}
        self._write("ended", **facts, own_seconds=done.overhead_seconds)

    def _warned(self, message: Warning | str, *_: object, **__: object) -> None:
        """Print a warning without its location in the code."""
        self.message(f"warning: {message}")

    def _refresh(self, *, force: bool = False) -> None:
        shown = [f"{n.chunk} step {n.iteration} {n.note}".strip() for n in list(self.notes.values())[:IN_HAND]]
        more = len(self.notes) - len(shown)
        in_hand = ", ".join(shown) + (f" and {more} more" if more else "")
        self.status.update(self._state(), in_hand, done=self.finished + self._inside(), force=force)

    def _inside(self) -> int:
        """Return how many trials of running chunks are done."""
        return sum(note.done for note in self.notes.values())

    def _state(self) -> str:
        converged = self.outcomes.get("converged", 0) + sum(n.converged for n in self.notes.values())
        diverged = self.outcomes.get("diverged", 0) + sum(n.diverged for n in self.notes.values())
        inside = self._inside()
        spent = time.monotonic() - self.status.began
        rate = (self.landed_now + inside) / spent if spent > 0 else 0.0
        parts = [f"{self.finished + inside}/{self.wanted} done"]
        parts += [f"{converged} converged", f"{diverged} diverged", *([pace(rate)] if rate else [])]
        if rate > 0 and self.wanted > self.finished + inside:
            left = (self.wanted - self.finished - inside) / rate
            most = self.most_seconds - spent  # trials end late in a chunk, so the rate is too optimistic at first
            parts.append(f"{duration(min(left, most) if most > 0 else left)} left")
        return ", ".join(parts)

    def _write(self, event: str, **facts: object) -> None:
        if self.log is None:
            return
        try:
            self.log.write(json.dumps({"event": event, "time": round(time.time(), 3), **facts}) + "\n")
            self.log.flush()
        except OSError as error:  # a broken log must not end the run
            self._close()
            self.status.say(f"--log-json cannot be written any more ({error.strerror}); the run continues without it")

    def _close(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()
