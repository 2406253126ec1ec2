"""One writer at a time: a lock that the kernel takes back when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.store.disk import clear_errors

_held: set[int] = set()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run, or raise InputError that says who holds it.

    The file stays and says who held it last; only the kernel's lock on it counts, so what a killed process left behind
    is no obstacle.
    """
    with clear_errors(path.parent, "nothing was changed"):
        handle = _take(path)
    try:
        yield
    finally:
        _drop(handle)


def _take(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _held.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sign(handle)
    except BlockingIOError:
        refusal = _refusal(path, os.pread(handle, 4096, 0))
        _drop(handle)
        raise InputError(refusal) from None
    except BaseException:
        _drop(handle)
        raise
    return handle


def _drop(handle: int) -> None:
    if handle in _held:  # not so in a forked child, where the number may belong to another file by now
        _held.discard(handle)
        os.close(handle)


def _sign(handle: int) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since})
    os.ftruncate(handle, 0)
    os.pwrite(handle, text.encode(), 0)


def _refusal(path: Path, signature: bytes) -> str:
    try:
        holder = json.loads(signature)
        who = f"process {holder['process']} on {holder['host']} (since {holder['since']})"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return (
        f"{path.parent} is being written by {who}; wait until it ends or stop it, then run the same command again "
        "(reading the run is possible meanwhile)"
    )


def _let_go() -> None:
    """Close the locks in a forked child: a worker that outlives its killed parent must not keep the run locked."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
