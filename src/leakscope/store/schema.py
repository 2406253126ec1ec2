"""The tables of records.sqlite, their version, and migrations from older versions."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from leakscope.core.errors import InputError
from leakscope.core.version import __version__
from leakscope.store.disk import check_plain, is_full, plain_code

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


MOST = 2**48  # of any count, place or label

# Columns of `record` that older runs of this format lack: read as None, added by the next writer.
LATER = {"learned": "TEXT"}
_ROWS = ("record", "sample")  # tables with rows for every trial: checked where they are read


def lacks(connection: sqlite3.Connection, column: str) -> bool:
    """Return whether the records of a run lack a column because the run is older."""
    return column not in {name for _, name, *_ in connection.execute("PRAGMA table_info(record)")}


def complete(connection: sqlite3.Connection) -> None:
    """Add the missing columns of an older run."""
    for column, kind in LATER.items():
        if lacks(connection, column):
            connection.execute(f"ALTER TABLE record ADD COLUMN {column} {kind}")


@cache
def _declared() -> Mapping[str, Mapping[str, tuple[str, int]]]:
    """Return table -> column -> (type, whether NULL is allowed) of the current format."""
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(TABLES)
        tables = [str(name) for (name,) in empty.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = "SELECT name, type, NOT [notnull] AND NOT pk FROM pragma_table_info(?)"
        return {table: {name: rule for name, *rule in empty.execute(columns, [table])} for table in tables}


def check_tables(connection: sqlite3.Connection) -> None:
    """Raise if anything but a table stands where a table of ours should, if it lacks a column, or if there is a trigger."""
    stored = {name: (kind, sql) for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema")}
    for table, columns in _declared().items():
        kind, sql = stored.get(table, ("", ""))
        visible = connection.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0", [table])
        lacking = columns.keys() - LATER - {name for (name,) in visible}
        if kind != "table" or not str(sql).upper().startswith("CREATE TABLE") or lacking:
            raise ValueError(f"{table!r} is no table of this format")
    if "trigger" in {kind for kind, _ in stored.values()}:
        raise ValueError("there is a trigger")


def check_values(connection: sqlite3.Connection) -> None:
    """Raise if a chunk or record names a row that does not exist, or if a value of a small table has not the type of its column."""
    for table in _declared().keys() - _ROWS:
        _check_types(connection, table, "1")
    cells, last = connection.execute("SELECT count(*), ifnull(max(id), 0) FROM cell").fetchone()
    lost = (connection.execute(f"PRAGMA foreign_key_check({table})").fetchone() for table in ("chunk", "record"))
    if cells != last or any(lost):
        raise ValueError("a row names another one that does not exist")


def check_rows(connection: sqlite3.Connection, cells: Sequence[int]) -> None:
    """Raise if a value of the records or samples of these cells (by number) has not the type of its column."""
    for table, chosen in zip(_ROWS, choose_rows(connection, cells), strict=True):
        _check_types(connection, table, chosen)


def choose_rows(connection: sqlite3.Connection, cells: Sequence[int]) -> tuple[str, str]:
    """Return the SQL conditions for records and samples of these cells; where these are most cells, a scan is faster than an index."""
    (stored,) = connection.execute("SELECT count(*) FROM cell").fetchone()
    numbers, scan = ", ".join(str(int(cell)) for cell in cells), "+" if 2 * len(cells) > stored else ""
    records = f"{scan}cell IN ({numbers})"
    return records, f"{scan}record IN (SELECT id FROM record WHERE {records})"


def _check_types(connection: sqlite3.Connection, table: str, chosen: str) -> None:
    wrong = [_wrong(name, *rule) for name, rule in _declared()[table].items() if name not in LATER]
    if connection.execute(f"SELECT 1 FROM {table} WHERE {chosen} AND ({' OR '.join(wrong)}) LIMIT 1").fetchone():
        raise ValueError(f"a value in table {table!r} has another type than its column")


def _wrong(column: str, kind: str, nullable: int) -> str:
    """Return the SQL condition for a value of the wrong type."""
    types = {"INTEGER": "'integer'", "TEXT": "'text'", "REAL": "'real'", "BLOB": "'blob', 'text'"}[kind]
    allowed = f"{types}, 'null'" if nullable else types
    if kind == "INTEGER" and column != "seed":
        return f"(typeof({column}) NOT IN ({allowed}) OR {column} NOT BETWEEN -{MOST} AND {MOST})"
    nan = f" AND {column} IS NOT 'nan'" if kind == "REAL" else ""
    return f"(typeof({column}) NOT IN ({allowed}){nan})"


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
    try:
        same = last is not None and (last[0], json.loads(last[1])) == (scenario, dict(facts))
    except (ValueError, RecursionError):
        same = False
    if not same:
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
_STEP = 1_000_000  # instructions of SQLite between two looks: about 0.1 s
_LEAST_STEPS, _BYTES_A_STEP = 50, 10_000  # a reading takes at most so many steps, and one more for so many bytes
_NO_SHARED_MEMORY = "mode=ro&vfs=unix-none"


@contextmanager
def reading(directory: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection to a consistent snapshot; a damaged file raises InputError."""
    path = directory / DATABASE
    try:
        with closing(_connect(path, _reading_mode(path))) as connection:
            left = repeat(False, _LEAST_STEPS + path.stat().st_size // _BYTES_A_STEP)
            connection.set_progress_handler(lambda: next(left, True), _STEP)
            connection.execute("BEGIN")
            if format_of(connection) == FORMAT:
                check_tables(connection)
            yield connection
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError, InputError):
        raise
    except sqlite3.DatabaseError as error:
        raise InputError(_unreadable(path, error)) from error
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError) as error:
        raise InputError(damaged(path, f"it holds what leakscope does not write: {error}")) from error


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
    return damaged(path, "it takes too long" if plain_code(error) == sqlite3.SQLITE_INTERRUPT else error)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    for end in ("", "-wal", "-shm"):
        check_plain(path.with_name(path.name + end), in_place="mode=rw" in mode)
    if os.path.lexists(journal := f"{path}-journal"):  # SQLite would delete the file that it names
        raise InputError(f"{journal} is no file of a run: delete it")
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    if mode == _NO_SHARED_MEMORY:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    return connection


def _reading_mode(path: Path) -> str:
    """Return how to open a database; in a read-only directory (an archive, a mount) SQLite cannot create its shared memory."""
    log, memory = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if os.access(path.parent, os.W_OK):
        return "mode=ro"
    if not log.exists() or not log.stat().st_size:
        return "immutable=1"
    return "mode=ro" if memory.exists() else _NO_SHARED_MEMORY  # the log of a killed writer
