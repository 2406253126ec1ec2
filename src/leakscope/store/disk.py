"""What can go wrong on a disk, told in one line."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
