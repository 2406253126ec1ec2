"""Messages between processes: work and chunk one way; result or error, and warnings, the other.

Plain pickle: torch.multiprocessing would send shared-memory handles that die with the worker, Ray would return read-only arrays.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

from leakscope.core.errors import InputError
from leakscope.core.plugins import import_plugin, plugin_imports
from leakscope.core.version import __version__
from leakscope.sweep.engines.contract import C, Note, OnNote, R, listening, torch_threads


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning of a worker."""

    text: str
    category: type[Warning]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a chunk. `error` is the exception if it can be pickled, else a RuntimeError with its text."""

    result: object = None
    error: BaseException | None = None
    where: str = ""
    warned: tuple[Warned, ...] = ()


def pack(work: Callable[[C], R], chunk: C) -> bytes:
    """Return work and chunk as bytes for any process with the same modules.

    >>> attempt(pack(len, "abc"), threads=1, on_note=None) != b""
    True
    """
    module, name = getattr(work, "__module__", None), getattr(work, "__qualname__", repr(work))
    if module == "__main__" or "<" in name:
        raise InputError(
            f"workers import the work by its module: {name} must be a function at the top of a module other than __main__"
        )
    return pickle.dumps((__version__, plugin_imports(), pickle.dumps((work, chunk), pickle.HIGHEST_PROTOCOL)))


def attempt(packed: bytes, *, threads: int, on_note: OnNote | None) -> bytes:
    """Return the pickled reply to a packed chunk; an exception also becomes a reply."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            work, chunk = _opened(packed)
            with torch_threads(threads), listening(on_note):
                result = work(chunk)
            return pickle.dumps(Reply(result, warned=_warned(caught)), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            reply = Reply(error=_portable(error), where=traceback.format_exc(), warned=_warned(caught))
            return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        finally:
            _free_devices()


def _opened(packed: bytes) -> tuple[Callable[[object], object], object]:
    """Return work and chunk; before they are unpickled the version is compared and the driver's plug-ins are imported."""
    theirs, imports, inside = pickle.loads(packed)  # noqa: S301  packed by our own driver
    if theirs != __version__:
        raise InputError(f"the driver has leakscope {theirs}, its worker {__version__}: install the same")
    for module, directory in imports:
        try:
            import_plugin(module, directory=directory)
        except InputError as error:
            raise InputError(f"a worker lacks components that the driver has: {error}") from None
    work, chunk = pickle.loads(inside)  # noqa: S301  as above
    return work, chunk


def unpack(packed: bytes, name: str, heard: dict[object, object]) -> object:
    """Return the result of a chunk or raise its error; its warnings are issued again, once a place by the registry `heard` of the run."""
    reply: Reply = pickle.loads(packed)  # noqa: S301  from a worker that we started
    for w in reply.warned:
        warnings.warn_explicit(w.text, w.category, w.file, w.line, registry=heard)  # type: ignore[arg-type]
    if reply.error is not None:
        reply.error.add_note(f"in chunk {name}; the worker's traceback:\n{reply.where}")
        raise reply.error
    return reply.result


def _warned(caught: list[warnings.WarningMessage] | None) -> tuple[Warned, ...]:
    return tuple(Warned(str(w.message), w.category, w.filename, w.lineno) for w in caught or ())


def _portable(error: Exception) -> Exception:
    """Return the error if it survives pickling, else a RuntimeError with its type and text."""
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
        faithful = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # pickling runs the methods of an error class we do not know
        faithful = False
    return error if faithful else RuntimeError(f"{type(error).__name__}: {error}")


def _free_devices() -> None:
    """Release torch's cached GPU memory: the next chunk on this GPU may be another worker's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


PATIENCE = 0.5  # seconds between checks that the driver is alive
QUIET = 0.2  # seconds between two notes of a worker


def serve(descriptor: int, driver: int) -> None:
    """Run chunks until the driver closes the pipe or exits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the driver decides when to stop
    os.set_inheritable(descriptor, False)  # a child process of a chunk must not keep the pipe open after this one exits
    threading.Thread(target=_leave_with, args=(driver,), daemon=True).start()
    pipe: Connection[object, object] = Connection(descriptor)
    while True:
        try:
            packed, threads, listens = cast(tuple[bytes, int, bool], pipe.recv())
        except (EOFError, OSError):
            return
        on_note = seldom(pipe.send, QUIET) if listens else None
        reply = attempt(packed, threads=threads, on_note=on_note)
        try:
            pipe.send(reply)
        except OSError:
            return  # the driver is gone


def _leave_with(driver: int) -> None:
    """End this process when the driver is no longer its parent."""
    while os.getppid() == driver:
        time.sleep(PATIENCE)
    os._exit(1)


def seldom(on_note: OnNote, seconds: float) -> OnNote:
    """Return a handler that passes on one note every `seconds`, and always a chunk's last note and notes with a message."""
    last = -seconds

    def sometimes(note: Note) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds or note.note or 0 < note.total == note.done:
            last = now
            on_note(note)

    return sometimes
