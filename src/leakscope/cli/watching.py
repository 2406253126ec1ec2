"""What people and programs see of a run: a live bar in a terminal, plain lines without one, JSON lines in a file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.experiments.engines import Note
    from leakscope.experiments.sweep import Done
    from leakscope.store import Landing

LINE_EVERY = 5.0
NOTE_EVERY = 0.5


class Dialogue:
    """The watcher of the command line."""

    def __init__(self, title: str, *, quiet: bool = False, log: Path | None = None) -> None:
        """Open the log and lay the bar out; nothing is shown before `__enter__`."""
        from rich.console import Console
        from rich.markup import escape

        self.title, self.quiet = escape(title), quiet
        self.console = Console(stderr=True, quiet=quiet)
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
        self.wanted, self.finished, self.landed_now = 0, 0, 0
        self.outcomes: dict[str, int] = {}
        self.began = self.told = self.logged = time.monotonic()

    def _bars(self) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self) -> Dialogue:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()
        if self.log is not None:
            self.log.close()

    def planned(self, wanted: int, before: int, chunks: int, seconds: float) -> None:
        """Show how much there is to do."""
        self.wanted, self.finished = wanted, before
        self._write("planned", wanted=wanted, before=before, chunks=chunks, seconds=seconds)
        known = f", {before} of them there already" if before else ""
        most = f", at most about {duration(seconds)}" if seconds else ""
        self._say(f"{self.title}: {wanted} trials{known}; {chunks} chunks to run{most}")
        if self.bars is not None:
            self.task = self.bars.add_task(self.title, total=wanted, completed=before, state="")
        self.began = time.monotonic()

    def noted(self, note: Note) -> None:
        """Show where the chunks in hand are."""
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

    def ended(self, done: Done) -> None:
        """Show where the time went."""
        self._write(
            "ended",
            wanted=done.wanted,
            landed=done.landed,
            left=done.left,
            attack_seconds=done.attack_seconds,
            own_seconds=done.own_seconds,
        )

    def _state(self) -> str:
        converged = self.outcomes.get("converged", 0) + sum(n.converged for n in self.notes.values())
        diverged = self.outcomes.get("diverged", 0) + sum(n.diverged for n in self.notes.values())
        inside = sum(n.done for n in self.notes.values())
        spent = time.monotonic() - self.began
        rate = (self.landed_now + inside) / spent if spent > 0 else 0.0
        left = self.wanted - self.finished - inside
        parts = [f"{converged} converged", f"{diverged} diverged", f"{rate:.1f}/s"]
        if rate > 0 and left > 0:
            parts.append(f"{duration(left / rate)} left")
        parts += [
            f"{n.chunk} step {n.iteration}{' ' + n.note if n.note else ''}" for n in list(self.notes.values())[:2]
        ]
        return ", ".join(parts)

    def _refresh(self, *, force: bool = False) -> None:
        inside = sum(n.done for n in self.notes.values())
        if self.bars is not None and self.task is not None:
            self.bars.update(self.task, completed=self.finished + inside, state=self._state())
            return
        now = time.monotonic()
        if force or now - self.told >= LINE_EVERY:
            self.told = now
            self._say(f"{self.finished + inside} of {self.wanted} done, {self._state()}")

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _write(self, event: str, **facts: object) -> None:
        if self.log is not None:
            told: Mapping[str, object] = {"event": event, "time": round(time.time(), 3), **facts}
            self.log.write(json.dumps(told) + "\n")
            self.log.flush()


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
