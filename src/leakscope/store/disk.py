"""Safe writes: disk errors as one-line messages, plain files only, atomic replacement of files, and the lock of a run."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import socket
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from leakscope.core.errors import InputError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_PERHAPS_FULL = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}


class DiskFullError(InputError):
    """The disk is full; everything stored earlier is intact."""


@contextmanager
def clear_errors(directory: Path, lost: str) -> Iterator[None]:
    """Turn an OS or SQLite error while writing `directory` into a one-line error; `lost` says what was not kept."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if is_full(error, directory):
            raise DiskFullError(
                f"disk full while writing {directory}: {lost}; free space and run the same command again"
            ) from error
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DatabaseError):
            raise  # misuse of SQLite is a bug, not a disk error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise InputError(f"cannot write {directory} ({_says(error)}): {lost}") from error


def is_full(error: OSError | sqlite3.Error, directory: Path) -> bool:
    """Return whether an error means that the disk is full; SQLite sometimes reports it as another error."""
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    code = plain_code(error)
    return code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and _no_room(directory))


def plain_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code, 0 if there is none; it is the low byte of the extended code."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _no_room(directory: Path) -> bool:
    """Return whether less space is free than SQLite's 32 KiB of shared memory and a few pages."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize < 1 << 16


def _says(error: OSError | sqlite3.Error) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return " ".join((reason or type(error).__name__).split())


PART = ".part"


def check_plain(path: Path, *, in_place: bool = False) -> None:
    """Raise unless a path is free or a plain file, so that no link is followed and no device replaced; `in_place`: nor a hard link."""
    with suppress(FileNotFoundError):
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            raise InputError(f"{path} is a link or no plain file: nothing was written there")
        if in_place and state.st_nlink > 1:
            raise InputError(f"{path} has a second name (a hard link), which would change too: copy the run")


def make_folder(path: Path) -> Path:
    """Return a folder inside a run, created if missing; a link in its place is refused."""
    if path.is_symlink():
        raise InputError(f"{path} is a link: a run keeps its files in its own directory")
    path.mkdir(exist_ok=True)
    return path


@contextmanager
def writing_to(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file for output that a user named: `-` and devices are written to, a plain file is replaced atomically."""
    is_link = path.is_symlink() and path.exists()
    stdout = str(path) == "-" or (is_link and os.path.samestat(path.stat(), os.fstat(1)))
    if not stdout and (not path.exists() or path.is_file() or path.is_dir()):
        with replacing(path) as file:
            yield file
        return
    content = io.BytesIO()  # Parquet needs to know its position
    yield content
    sys.stdout.flush()
    # without a reader, opening a FIFO fails instead of waiting
    handle = os.dup(1) if stdout else os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with open(handle, "wb") as stream:
        os.set_blocking(handle, True)
        stream.write(content.getbuffer())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that atomically replaces `path`, a plain file if it exists, when the block succeeds and is deleted otherwise."""
    check_plain(path)
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)  # left by a killed process, or a planted link
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # data reaches the disk before the rename
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def replace_changed(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a plain file atomically, with these permissions, unless it already holds the data."""
    check_plain(path)
    if path.exists() and path.read_bytes() == data:
        return
    with replacing(path) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)  # before anything is written
        file.write(data)


def sync_directory(path: Path) -> None:
    """Flush a directory to disk; otherwise a power cut may lose a rename."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_held: set[int] = set()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run, or raise InputError that names its holder; only the kernel's lock counts, not the file."""
    with clear_errors(path.parent, "nothing was changed"):
        handle = _take(path)
    try:
        yield
    finally:
        _drop(handle)


def _take(path: Path) -> int:
    check_plain(path, in_place=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
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
    if handle in _held:  # not in a forked child, where the number may belong to another file
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
    """Close the locks in a forked child: a worker that outlives its parent must not keep the run locked."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
