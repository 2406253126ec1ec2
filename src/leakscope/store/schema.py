"""The tables of records.sqlite, their version, and migrations from older versions."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from leakscope.core.errors import InputError
from leakscope.core.version import __version__
from leakscope.store.disk import is_full, plain_code

FORMAT = 1
APPLICATION = 0x6C6B7363  # 'lksc': marks leakscope's SQLite files

Migration: TypeAlias = Callable[[sqlite3.Connection], None]

# Migration from each format to the next. The table `about` and the two pragmas never change.
MIGRATIONS: dict[int, Migration] = {}

# Cells, chunks and records have integer keys, so names and hashes are stored once. Number columns may
# also hold the text 'nan', because SQLite turns a bound NaN into NULL.
TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (id INTEGER PRIMARY KEY, started TEXT NOT NULL, scenario TEXT NOT NULL, facts TEXT NOT NULL);
CREATE TABLE cell (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL, axes TEXT NOT NULL,
    baseline INTEGER NOT NULL, place INTEGER);
CREATE TABLE plan (id INTEGER PRIMARY KEY, created TEXT NOT NULL, digest BLOB NOT NULL UNIQUE, plan TEXT NOT NULL);
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY, plan INTEGER NOT NULL REFERENCES plan, name TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES session, landed TEXT NOT NULL, seconds REAL NOT NULL, trials INTEGER NOT NULL,
    size INTEGER, sha256 BLOB, UNIQUE (plan, name));
CREATE TABLE record (
    id INTEGER PRIMARY KEY, trial BLOB NOT NULL UNIQUE, cell INTEGER NOT NULL REFERENCES cell,
    chunk INTEGER NOT NULL REFERENCES chunk, place INTEGER NOT NULL, number INTEGER NOT NULL, seed INTEGER NOT NULL,
    items TEXT NOT NULL, outcome TEXT NOT NULL, iterations INTEGER NOT NULL, evaluations INTEGER NOT NULL,
    mismatch REAL, label_overlap REAL, seconds REAL NOT NULL, version TEXT NOT NULL, learned TEXT);
CREATE INDEX record_by_cell ON record (cell, number);
CREATE INDEX record_by_chunk ON record (chunk);
CREATE TABLE sample (
    record INTEGER NOT NULL REFERENCES record, place INTEGER NOT NULL, sample INTEGER NOT NULL, label INTEGER NOT NULL,
    guess INTEGER, mse REAL NOT NULL, psnr REAL NOT NULL, ssim REAL, label_correct INTEGER, recovered INTEGER NOT NULL,
    finite INTEGER NOT NULL, PRIMARY KEY (record, place)) WITHOUT ROWID;
"""


# Columns of `record` that older runs of this format lack: read as None, added by the next writer.
LATER = {"learned": "TEXT"}


def lacks(connection: sqlite3.Connection, column: str) -> bool:
    """Return whether the records of a run lack a column because the run is older."""
    return column not in {name for _, name, *_ in connection.execute("PRAGMA table_info(record)")}


def complete(connection: sqlite3.Connection) -> None:
    """Add the missing columns of an older run."""
    for column, kind in LATER.items():
        if lacks(connection, column):
            connection.execute(f"ALTER TABLE record ADD COLUMN {column} {kind}")


def now() -> str:
    """Return the UTC time as text, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def lay(connection: sqlite3.Connection) -> None:
    """Create the tables of the current format in an empty database."""
    connection.executescript(TABLES)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.executemany("INSERT INTO about VALUES (?, ?)", [("leakscope", __version__), ("created", now())])


def begin_session(connection: sqlite3.Connection, scenario: str, facts: Mapping[str, str]) -> None:
    """Store the scenario and the facts unless they are unchanged."""
    last = connection.execute("SELECT scenario, facts FROM session ORDER BY id DESC LIMIT 1").fetchone()
    if last is None or (last[0], json.loads(last[1])) != (scenario, dict(facts)):
        row = [now(), scenario, json.dumps(dict(facts))]
        connection.execute("INSERT INTO session (started, scenario, facts) VALUES (?, ?, ?)", row)


def format_of(connection: sqlite3.Connection) -> int | None:
    """Return the format of a database, None if leakscope did not write it."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version) if application == APPLICATION else None


def refusal(connection: sqlite3.Connection, version: int, migrations: Mapping[int, Migration]) -> str | None:
    """Return why a database of that format cannot be used, None if it can (perhaps after `migrate`)."""
    if all(step in migrations for step in range(version, FORMAT)) and version <= FORMAT:
        return None
    writer = connection.execute("SELECT value FROM about WHERE key = 'leakscope'").fetchone()
    origin = f"written by leakscope {writer[0] if writer else '(unknown version)'} in format {version}"
    if version > FORMAT:
        return f"{origin}; leakscope {__version__} reads up to format {FORMAT}: update leakscope"
    return f"{origin}, which leakscope {__version__} (format {FORMAT}) no longer reads: export it with the leakscope that wrote it"


def migrate(connection: sqlite3.Connection, migrations: Mapping[int, Migration]) -> None:
    """Migrate a database to the current format in one transaction."""
    with transaction(connection):
        version = format_of(connection)
        if version is None:
            raise InputError("not a database of leakscope")
        for step in range(version, FORMAT):
            migrations[step](connection)
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("INSERT OR REPLACE INTO about VALUES ('leakscope', ?)", [__version__])


DATABASE = "records.sqlite"
_PATIENCE = 30.0  # seconds to wait for another connection to open or close the file


@contextmanager
def reading(directory: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection to a consistent snapshot; a damaged file raises InputError."""
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
    """Return the writer's connection: every commit is on disk when it returns."""
    connection = _connect(directory / DATABASE, "mode=rw")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def make_database(path: Path) -> sqlite3.Connection:
    """Return a connection to a new, empty database with a write-ahead log."""
    connection = _connect(path, "mode=rwc")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction: commit or roll back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def damaged(path: Path, error: object) -> str:
    """Return the message for a database that cannot be read."""
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
    """Return whether the directory is read-only (an archive, a mount), where SQLite cannot create its shared memory."""
    log = path.with_name(path.name + "-wal")
    return not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
