"""The progress of a run of trials: on the terminal, and in a log of JSON lines."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from leakscope.cli.progress import StatusBar
from leakscope.cli.text import at_most, count, duration, pace
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.store import Landing
    from leakscope.sweep import Done
    from leakscope.sweep.engines import Note

NOTE_EVERY = 0.5
IN_HAND = 4


class RunProgress:
    """The progress of a run of trials, on the terminal and in a log of JSON lines."""

    def __init__(self, title: str, *, quiet: bool = False, log: Path | None = None) -> None:
        """Open the log and lay the bar out; nothing is shown before `__enter__`."""
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
        """Show how much there is to do."""
        self.wanted, self.finished, self.most_seconds = wanted, before, seconds
        self._write("planned", wanted=wanted, before=before, chunks=chunks, seconds=seconds)
        stored = f", {before} of them there already" if before else ""
        most = f", {at_most(seconds)}" if seconds else ""
        self.status.say(f"{self.title}: {count(wanted, 'trial')}{stored}; {count(chunks, 'chunk')} to run{most}")
        self.status.begin(wanted, before)

    def noted(self, note: Note) -> None:
        """Show where the chunks in hand are; a note without numbers is a word about the chunk, such as a lost worker."""
        if note.note and not note.total:
            self.message(f"{note.chunk}: {note.note}")
        if not note.total or note.chunk in self.stored:  # on a cluster a note may come after its chunk
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
        """Show a sentence."""
        self._write("said", line=line)
        self.status.say(line)

    def ended(self, done: Done) -> None:
        """Log how the run ended and where the time went."""
        names = ("wanted", "before", "landed", "left", "outcomes", "attack_seconds")
        facts: dict[str, object] = {name: getattr(done, name) for name in names}
        self._write("ended", **facts, own_seconds=done.overhead_seconds)

    def _warned(self, message: Warning | str, *_: object, **__: object) -> None:
        """Show a warning of the library as a sentence, without the place in the code."""
        self.message(f"warning: {message}")

    def _refresh(self, *, force: bool = False) -> None:
        shown = [f"{n.chunk} step {n.iteration} {n.note}".strip() for n in list(self.notes.values())[:IN_HAND]]
        more = len(self.notes) - len(shown)
        in_hand = ", ".join(shown) + (f" and {more} more" if more else "")
        self.status.update(self._state(), in_hand, done=self.finished + self._inside(), force=force)

    def _inside(self) -> int:
        """Return how many trials of the chunks in hand are done."""
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
            most = self.most_seconds - spent  # trials end late in a chunk: the rate alone promises too little at first
            parts.append(f"{duration(min(left, most) if most > 0 else left)} left")
        return ", ".join(parts)

    def _write(self, event: str, **facts: object) -> None:
        if self.log is None:
            return
        try:
            self.log.write(json.dumps({"event": event, "time": round(time.time(), 3), **facts}) + "\n")
            self.log.flush()
        except OSError as error:  # the run is worth more than its log
            self._close()
            self.status.say(f"--log-json cannot be written any more ({error.strerror}); the run goes on without it")

    def _close(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()
