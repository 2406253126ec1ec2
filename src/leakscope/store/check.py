"""What a crash or a bad disk left behind, found and dropped before anyone writes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.store.connection import DATABASE, damaged, transaction
from leakscope.store.durable import PART
from leakscope.store.scenario_file import SCENARIO
from leakscope.store.tensor_files import SUFFIX, TENSORS, Stamp, fault, file_of

_READERS = 4  # hashing lets other threads run; more of them would only wait for the disk


@dataclass(frozen=True, slots=True)
class _Chunk:
    id: int
    path: Path
    trials: int
    stamp: Stamp


def drop_what_is_broken(directory: Path, connection: sqlite3.Connection) -> list[str]:
    """Make the run whole and return in sentences what had to go.

    Unfinished files, and tensor files that no chunk names, are deleted. A chunk whose file is missing or differs in a
    single byte from what was written loses its records, so that its trials are done again.
    """
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise InputError(damaged(directory / DATABASE, state))
    chunks = _chunks(directory, connection)
    messages = _delete_strays(directory, {chunk.path for chunk in chunks})
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as pool:
        faults = list(pool.map(lambda chunk: fault(chunk.path, chunk.stamp), chunks))
    broken = [(chunk, wrong) for chunk, wrong in zip(chunks, faults, strict=True) if wrong]
    _forget(connection, (chunk.id for chunk, _ in broken))
    for chunk, wrong in broken:
        chunk.path.unlink(missing_ok=True)
        messages.append(f"{_name(chunk.path)} {wrong}: its {_count(chunk.trials, 'trial')} will be done again")
    return messages


def _chunks(directory: Path, connection: sqlite3.Connection) -> list[_Chunk]:
    rows = connection.execute(
        "SELECT id, plan, name, trials, size, sha256 FROM chunk WHERE size IS NOT NULL ORDER BY id"
    )
    return [
        _Chunk(id, file_of(directory, plan, name), trials, Stamp(size, sha256))
        for id, plan, name, trials, size, sha256 in rows
    ]


def _delete_strays(directory: Path, known: set[Path]) -> list[str]:
    """Delete what a killed writer left; the chunks in question were never stored, so nothing is lost."""
    tensors = directory / TENSORS
    tensors.mkdir(exist_ok=True)
    parts = [path for path in (directory / (SCENARIO + PART), *tensors.glob(f"*{PART}")) if path.is_file()]
    strays = [path for path in tensors.glob(f"*{SUFFIX}") if path not in known]
    for path in (*parts, *strays):
        path.unlink()
    messages = [f"{_name(path)} was left unfinished: deleted" for path in sorted(parts)]
    return messages + [f"{_name(path)} belongs to no stored chunk: deleted" for path in sorted(strays)]


def _forget(connection: sqlite3.Connection, chunks: Iterable[int]) -> None:
    """Delete chunks and all their records in one transaction."""
    chosen = json.dumps(list(chunks))
    if chosen == "[]":
        return
    among = "IN (SELECT value FROM json_each(?))"
    with transaction(connection):
        connection.execute(f"DELETE FROM sample WHERE record IN (SELECT id FROM record WHERE chunk {among})", [chosen])
        connection.execute(f"DELETE FROM record WHERE chunk {among}", [chosen])
        connection.execute(f"DELETE FROM chunk WHERE id {among}", [chosen])


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
