"""Creating and opening a run directory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.store.disk import PART, check_plain, clear_errors, locked, make_folder, replacing, sync_directory
from leakscope.store.schema import (
    DATABASE,
    FORMAT,
    MIGRATIONS,
    begin_session,
    check_values,
    connect_writer,
    damaged,
    format_of,
    lay,
    make_database,
    migrate,
    reading,
    refusal,
)
from leakscope.store.tensor_files import TENSORS

LOCK = "run.lock"
AUDIT = "audit.json"  # of the directory of an audit
WORK = "work"


def holds_run(directory: Path) -> bool:
    """Return whether a directory holds a run, whatever its format."""
    return (directory / DATABASE).is_file()


def make(directory: Path, scenario: str, facts: Mapping[str, str]) -> Path:
    """Create an empty run and return its directory."""
    if holds_run(directory):
        raise InputError(f"{directory} already holds a run: open it, or choose another directory")
    check_free(directory, scenario)
    with clear_errors(directory, "no run was made"):
        directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / LOCK), clear_errors(directory, "no run was made"):
        check_free(directory, scenario)
        for name in (TENSORS, WORK):
            make_folder(directory / name)
        _lay_database(directory, scenario, facts)  # atomic: a run exists whole or not at all
        write_scenario(directory, scenario)
    return directory


def migrated(directory: Path) -> Path:
    """Return a directory whose run has the current format, migrating it if possible; refuse anything else."""
    if not holds_run(directory):
        what = f"it holds no {DATABASE}" if directory.is_dir() else "there is no such directory"
        if (directory / AUDIT).is_file():
            what = f"it holds an audit; its page is {directory / 'index.html'}, and leakscope show {directory} prints its tables"
        raise InputError(f"{directory} is not a run: {what}")
    version = _usable_format(directory)
    if version != FORMAT:
        lost = "the run stays in its old format"
        with locked(directory / LOCK), clear_errors(directory, lost), closing(connect_writer(directory)) as connection:
            migrate(connection, MIGRATIONS)
    return directory


def check_scratch(directory: Path) -> None:
    """Raise if the scratch directory of a run is a link or holds anything but folders and plain files: chunks write there."""
    for folder, folders, files in os.walk(make_folder(directory / WORK)):
        for name in folders:
            make_folder(Path(folder, name))
        for name in files:
            check_plain(Path(folder, name), in_place=True)


def _usable_format(directory: Path) -> int:
    """Return the format of a run that can be read, perhaps after migration; raise for any other."""
    with reading(directory) as connection:
        version = format_of(connection)
        if version is None:
            raise InputError(f"{directory} is not a run: its {DATABASE} was not made by leakscope")
        try:
            reason = refusal(connection, version, MIGRATIONS)
            if version == FORMAT:
                check_values(connection)
        except sqlite3.OperationalError as error:
            raise InputError(damaged(directory / DATABASE, error)) from error
    if reason:
        raise InputError(f"{directory} was {reason}")
    return version


def _lay_database(directory: Path, scenario: str, facts: Mapping[str, str]) -> None:
    part = directory / (DATABASE + PART)
    for left in directory.glob(f"{part.name}*"):
        left.unlink()
    with closing(make_database(part)) as connection:
        lay(connection)
        begin_session(connection, scenario, facts)
    os.replace(part, directory / DATABASE)
    sync_directory(directory)


def check_free(directory: Path, scenario: str) -> None:
    """Raise if a new run cannot go there: a directory holds more than a killed `make` leaves (or this same scenario)."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InputError(f"{directory} is a file; a run needs a directory")
    for path in sorted(directory.iterdir()):
        ours = path.name in {LOCK, TENSORS, WORK} or path.name.startswith(DATABASE + PART)
        same = path.name == SCENARIO and path.is_file() and path.read_bytes() == scenario.encode()
        full = path.name in {TENSORS, WORK} and any(path.iterdir())
        if (not ours and not same) or full:
            raise InputError(f"{directory} is not empty (it holds {path.name}): choose a new directory for the run")


SCENARIO = "scenario.yaml"


def write_scenario(directory: Path, scenario: str) -> None:
    """Write scenario.yaml unless it is up to date; it is for people and editors, the database is authoritative."""
    path, data = directory / SCENARIO, scenario.encode()
    if not path.is_file() or path.read_bytes() != data:
        with replacing(path) as file:
            file.write(data)
