"""What people and programs see of a run: a live bar in a terminal, plain lines without one, JSON lines in a file."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.store import Landing
    from leakscope.sweep import Done
    from leakscope.sweep.engines import Note

LINE_EVERY, LINE_AT_LEAST = 5.0, 60.0  # seconds between two lines: a tenth of the time so far, within these
NOTE_EVERY = 0.5
IN_HAND = 4


class Dialogue:
    """The watcher of the command line."""

    def __init__(self, title: str, *, quiet: bool = False, log: Path | None = None) -> None:
        """Open the log and lay the bar out; nothing is shown before `__enter__`."""
        from rich.console import Console

        self.title, self.quiet = title, quiet
        self.console = Console(stderr=True, quiet=quiet, markup=False, emoji=False, highlight=False)
        self.log: IO[str] | None = None
        if log is not None:
            try:
                self.log = log.open("a", encoding="utf-8")
            except OSError as error:
                raise InputError(f"--log-json {log} cannot be written ({error.strerror})") from None
        self.live = self.console.is_terminal and not quiet
        self.bars = self._bars() if self.live else None
        self.task: Any = None
        self.notes: dict[str, Note] = {}
        self.settled: set[str] = set()
        self.wanted, self.finished, self.landed_now = 0, 0, 0
        self.most = 0.0
        self.outcomes: dict[str, int] = {}
        self.warnings = warnings.catch_warnings()
        self.began = self.told = self.logged = time.monotonic()

    def _bars(self) -> Any:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        state = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        return Progress(
            BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}", markup=False, table_column=state),
            console=self.console,
            expand=True,
        )

    def __enter__(self) -> Dialogue:
        self.warnings.__enter__()
        warnings.showwarning = self._warned
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()
        self.warnings.__exit__(kind, error, trace)
        if kind is not None:
            self._write("failed", error=kind.__name__, line=str(error), done=self.finished, wanted=self.wanted)
        self._close()

    def planned(self, wanted: int, before: int, chunks: int, seconds: float) -> None:
        """Show how much there is to do."""
        self.wanted, self.finished, self.most = wanted, before, seconds
        self._write("planned", wanted=wanted, before=before, chunks=chunks, seconds=seconds)
        known = f", {before} of them there already" if before else ""
        most = f", {at_most(seconds)}" if seconds else ""
        self._say(f"{self.title}: {count(wanted, 'trial')}{known}; {count(chunks, 'chunk')} to run{most}")
        if self.bars is not None:
            self.task = self.bars.add_task("", total=wanted, completed=before, state="")
        self.began = time.monotonic()

    def noted(self, note: Note) -> None:
        """Show where the chunks in hand are; a note without numbers is a word about the chunk, such as a lost worker."""
        if note.note and not note.total:
            self.said(f"{note.chunk}: {note.note}")
        if not note.total or note.chunk in self.settled:  # on a cluster a note may come after its chunk
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
        """Show that a chunk is stored."""
        self.notes.pop(landing.chunk, None)
        self.settled.add(landing.chunk)
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

    def said(self, line: str) -> None:
        """Show a sentence."""
        self._write("said", line=line)
        self._say(line)

    def _warned(self, message: Warning | str, *_: object, **__: object) -> None:
        """Show a warning of the library as a sentence; where in the code it was raised is of no use here."""
        self.said(f"warning: {message}")

    def ended(self, done: Done) -> None:
        """Write down how it ended and where the time went."""
        self._write(
            "ended",
            wanted=done.wanted,
            before=done.before,
            landed=done.landed,
            left=done.left,
            outcomes=done.outcomes,
            attack_seconds=done.attack_seconds,
            own_seconds=done.own_seconds,
        )

    def _state(self) -> str:
        converged = self.outcomes.get("converged", 0) + sum(n.converged for n in self.notes.values())
        diverged = self.outcomes.get("diverged", 0) + sum(n.diverged for n in self.notes.values())
        inside = sum(n.done for n in self.notes.values())
        spent = time.monotonic() - self.began
        rate = (self.landed_now + inside) / spent if spent > 0 else 0.0
        parts = [f"{self.finished + inside}/{self.wanted} done"]
        parts += [f"{converged} converged", f"{diverged} diverged", *([pace(rate)] if rate else [])]
        if rate > 0 and self.wanted > self.finished + inside:
            left = (self.wanted - self.finished - inside) / rate
            most = self.most - spent  # trials end late in a chunk, so that the rate alone promises too little at first
            parts.append(f"{duration(min(left, most) if most > 0 else left)} left")
        return ", ".join(parts)

    def _in_hand(self) -> str:
        """Return where the first chunks in hand are."""
        shown = [f"{n.chunk} step {n.iteration} {n.note}".strip() for n in list(self.notes.values())[:IN_HAND]]
        more = len(self.notes) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def _refresh(self, *, force: bool = False) -> None:
        inside = sum(n.done for n in self.notes.values())
        if self.bars is not None and self.task is not None:
            state = "\n".join([self._state(), self._in_hand()]).strip()
            self.bars.update(self.task, completed=self.finished + inside, state=state)
            return
        now = time.monotonic()
        if force or now - self.told >= min(max(LINE_EVERY, (now - self.began) / 10), LINE_AT_LEAST):
            self.told = now
            self._say(", ".join(part for part in (self._state(), self._in_hand()) if part))

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(printable(line), soft_wrap=True)

    def _write(self, event: str, **facts: object) -> None:
        if self.log is None:
            return
        told: Mapping[str, object] = {"event": event, "time": round(time.time(), 3), **facts}
        try:
            self.log.write(json.dumps(told) + "\n")
            self.log.flush()
        except OSError as error:  # the run is worth more than its log
            self._close()
            self._say(f"--log-json cannot be written any more ({error.strerror}); the run goes on without it")

    def _close(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()


def printable(text: str) -> str:
    r"""Return a text with control characters spelled out, so that no name can steer the terminal.

    >>> printable("caf\u00e9 \x1b[31m")
    'café \\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "trial"), count(12000, "trial")
    ('1 trial', '12,000 trials')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def at_most(seconds: float) -> str:
    """Return an upper estimate of a time in words.

    >>> at_most(0.4), at_most(42)
    ('under a second', 'at most about 42 s')
    """
    return f"at most about {duration(seconds)}" if seconds >= 1 else duration(seconds)


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> [duration(s) for s in (0.4, 42, 90, 7300)]
    ['under a second', '42 s', '2 min', '2.0 h']
    """
    if seconds < 1:
        return "under a second"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def pace(rate: float) -> str:
    """Return trials a second in the unit that suits them.

    >>> [pace(rate) for rate in (112.46, 0.5, 0.001)]
    ['112.5/s', '30.0/min', '3.6/h']
    """
    if rate >= 1:
        return f"{rate:.1f}/s"
    return f"{rate * 60:.1f}/min" if rate * 60 >= 1 else f"{rate * 3600:.1f}/h"
