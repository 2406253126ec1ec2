"""The other end of `processes`: takes packed chunks from a pipe and sends back notes and replies, until the pipe closes."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import cast

from leakscope.sweep.engines.contract import Note, Tell
from leakscope.sweep.engines.parcels import attempt

PATIENCE = 0.5  # seconds between two looks at whether the driver lives
QUIET = 0.2  # seconds between two notes of a worker


def serve(descriptor: int, driver: int) -> None:
    """Carry out chunks until the driver hangs up or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides when to stop
    os.set_inheritable(descriptor, False)  # a process begun by a chunk must not hold the line after we are gone
    threading.Thread(target=_leave_with, args=(driver,), daemon=True).start()
    pipe: Connection[object, object] = Connection(descriptor)
    while True:
        try:
            packed, threads, listens = cast(tuple[bytes, int, bool], pipe.recv())
        except (EOFError, OSError):
            return
        tell = seldom(pipe.send, QUIET) if listens else None
        reply = attempt(packed, threads=threads, tell=tell)
        try:
            pipe.send(reply)
        except OSError:
            return  # the driver is gone, and with it whoever wanted this


def _leave_with(driver: int) -> None:
    """End this process, whatever it is doing, when the driver is no longer its parent."""
    while os.getppid() == driver:
        time.sleep(PATIENCE)
    os._exit(1)


def seldom(tell: Tell, seconds: float) -> Tell:
    """Return a `tell` that passes on a note every so many seconds, and always the last of a chunk and those with words."""
    last = -seconds

    def told(note: Note) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds or note.note or 0 < note.total == note.done:
            last = now
            tell(note)

    return told
