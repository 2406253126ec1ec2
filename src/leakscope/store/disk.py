"""What can go wrong on a disk, told in one line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from leakscope.core.errors import InputError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_PERHAPS_FULL = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}


class DiskFullError(InputError):
    """The disk has no room for what was to be written; what was stored before is whole."""


@contextmanager
def clear_errors(directory: Path, lost: str) -> Iterator[None]:
    """Turn an error of the disk or of sqlite while writing `directory` into one line; `lost` says what was not kept."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if is_full(error, directory):
            raise DiskFullError(
                f"disk full while writing {directory}: {lost}; free space and run the same command again"
            ) from error
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DatabaseError):
            raise  # misuse of sqlite is a fault of ours, not of the disk
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise InputError(f"cannot write {directory} ({_says(error)}): {lost}") from error


def is_full(error: OSError | sqlite3.Error, directory: Path) -> bool:
    """Return whether an error comes from a disk without room; in some places sqlite gives it another name."""
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    code = plain_code(error)
    return code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and _no_room(directory))


def plain_code(error: sqlite3.Error) -> int:
    """Return sqlite's code of an error, 0 where there is none; the extended codes carry the plain one in their low byte."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _no_room(directory: Path) -> bool:
    """Return whether less than the 32 KiB of sqlite's shared memory and a few pages are free."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize < 1 << 16


def _says(error: OSError | sqlite3.Error) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return " ".join((reason or type(error).__name__).split())


PART = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write; it takes the place of `path` when the block ends well, and vanishes when it does not.

    The bytes go to `path` + '.part' first and reach the disk before the rename, the rename before this returns.
    """
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk: without this a rename may be lost in a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
