"""Connections to records.sqlite: one that writes, many that read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from leakscope.core.errors import InputError
from leakscope.store.disk import is_full, plain_code

DATABASE = "records.sqlite"
_PATIENCE = 30.0  # seconds to wait for another connection that is just opening or closing the file


@contextmanager
def reading(directory: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection that sees one moment of the run and cannot write; a damaged file raises InputError."""
    path = directory / DATABASE
    try:
        with closing(_connect(path, "immutable=1" if _frozen(path) else "mode=ro")) as connection:
            connection.execute("BEGIN")
            yield connection
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError):
            raise
        raise InputError(_unreadable(path, error)) from error


def connect_writer(directory: Path) -> sqlite3.Connection:
    """Return the connection of the one writer: every transaction is on the disk when it returns."""
    connection = _connect(directory / DATABASE, "mode=rw")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def make_database(path: Path) -> sqlite3.Connection:
    """Return a connection to a new, empty database that will keep a write-ahead log."""
    connection = _connect(path, "mode=rwc")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do everything in the block or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def damaged(path: Path, error: object) -> str:
    """Return the line for a database that cannot be read."""
    reason = " ".join(str(error).split())
    return f"{path} cannot be read ({reason}): restore it from a copy, or run into a new directory"


def _unreadable(path: Path, error: sqlite3.Error) -> str:
    if is_full(error, path.parent):
        return f"{path} cannot be read while the disk is full: free space and try again"
    if plain_code(error) == sqlite3.SQLITE_BUSY:
        return f"{path} is locked by another program: close that and try again"
    return damaged(path, error)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    return sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)


def _frozen(path: Path) -> bool:
    """Return whether nobody can write here (an archive, a read-only mount), where sqlite cannot lay its shared memory."""
    log = path.with_name(path.name + "-wal")
    return not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
