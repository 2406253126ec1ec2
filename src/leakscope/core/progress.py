"""Progress of a long call: small values for a caller's function, or by default a status line on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from leakscope.core.errors import InputError

EVERY = 0.1  # seconds between two states of the status line
WIDTH = 79


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One report of a long call: the `phase` that runs, and `done` of its `total` parts (0: not known).

    `seconds` are those since the call began. `message` is text worth a line of its own; without one it is a tick.
    """

    phase: str
    done: int
    total: int
    seconds: float
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return f"{self.phase}: {self.message}"
        return f"{self.phase}: {self.done:,} of {self.total:,}, {self.seconds:.0f} s" if self.total else self.phase


Listener: TypeAlias = Callable[[ProgressEvent], None]
ProgressOption: TypeAlias = (
    Listener | Literal[False] | None
)  # None: a status line in a terminal or notebook; False: nothing


@dataclass(frozen=True, slots=True)
class Reporter:
    """Sends events to a listener, if there is one."""

    listener: Listener | None = None
    began: float = field(default_factory=time.monotonic)

    def __call__(self, phase: str, message: str = "", *, done: int = 0, total: int = 0) -> None:
        """Report a phase: that it begins or has news (`message`), or how far it is."""
        if self.listener is not None:
            self.listener(ProgressEvent(phase, done, total, time.monotonic() - self.began, message))


SILENT = Reporter()


@dataclass(slots=True)
class StatusLine:
    """Prints messages to stderr, a line each; if `live`, also the state between them, on one line that is rewritten."""

    live: bool
    shown: float = 0.0
    length: int = 0  # of the state on the screen

    def __call__(self, event: ProgressEvent) -> None:
        """Show an event."""
        text = printable(str(event))
        if event.message:
            self.clear()
            sys.stderr.write(f"{text}\n")
        elif self.live and time.monotonic() - self.shown >= EVERY:
            self.shown = time.monotonic()
            text, before = text[:WIDTH], self.length
            self.length = len(text)
            sys.stderr.write(f"\r{text.ljust(before)}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the state from the screen."""
        if self.length:
            sys.stderr.write(f"\r{' ' * self.length}\r")
            self.length = 0


def is_watched() -> bool:
    """Return whether somebody sees stderr: in a terminal or a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def status_line(*, quiet: bool = False) -> ProgressOption:
    """Return the progress of a command: lines on stderr wherever they go, and the state between them if somebody sees it."""
    return False if quiet else StatusLine(live=is_watched())


@contextmanager
def reporting(progress: ProgressOption) -> Iterator[Reporter]:
    """Yield the reporter of a call; the default status line is removed at its end."""
    line = StatusLine(live=True) if progress is None and is_watched() else None
    if progress is not None and progress is not False and not callable(progress):
        raise InputError(f"progress must be None, False or a function of one ProgressEvent, got {progress!r:.40}")
    try:
        yield Reporter(line or progress or None)
    finally:
        if isinstance(shown := line or progress, StatusLine):
            shown.clear()


def printable(text: str) -> str:
    r"""Return a text with control characters escaped, so that no name can control the terminal.

    >>> printable("caf\u00e9 \x1b[31m")
    'café \\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
