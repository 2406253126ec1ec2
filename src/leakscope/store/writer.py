"""The write side of a run: chunks are stored atomically and never twice."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.store import columns as rows
from leakscope.store.directory import SCENARIO, write_scenario
from leakscope.store.disk import PART, clear_errors, make_folder
from leakscope.store.schema import DATABASE, begin_session, damaged, now, transaction
from leakscope.store.tensor_files import SUFFIX, TENSORS, Landing, Stamp, fault, file_of, is_ours, write_tensors

_NOTHING = "nothing was changed"


class Writer:
    """The only writer of a run, created by `Run.writing`. Changes are on disk when a method returns."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        self.directory = directory
        self._connection = connection
        self._dropped: list[str] | None = None

    def verify(self) -> list[str]:
        """Return messages on what was dropped as broken (once, on entering `Run.writing`); its trials count as not done."""
        if self._dropped is None:
            with clear_errors(self.directory, _NOTHING):
                self._dropped = drop_what_is_broken(self.directory, self._connection)
        return list(self._dropped)

    def renew(self, scenario: str, cells: Sequence[Cell], facts: Mapping[str, str]) -> None:
        """Set the scenario, the current cells (in this order) and the facts; other cells stay stored, but are not current."""
        places = [
            (cell.id, _json(cell.settings), _json(cell.axes), int(cell.baseline), place)
            for place, cell in enumerate(cells)
        ]
        with clear_errors(self.directory, _NOTHING):
            with transaction(self._connection):
                self._connection.execute("UPDATE cell SET place = NULL")
                self._connection.executemany(
                    "INSERT INTO cell (name, settings, axes, baseline, place) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) "
                    "DO UPDATE SET settings = excluded.settings, axes = excluded.axes, baseline = excluded.baseline, "
                    "place = excluded.place",
                    places,
                )
                begin_session(self._connection, scenario, facts)
            write_scenario(self.directory, scenario)

    def add_plan(self, plan: Mapping[str, object]) -> int:
        """Return the number of a plan (JSON data), storing it unless it is stored already."""
        text = json.dumps(plan, sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()
        with clear_errors(self.directory, _NOTHING), transaction(self._connection):
            self._connection.execute(
                "INSERT INTO plan (created, digest, plan) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING",
                [now(), digest, text],
            )
            (number,) = self._connection.execute("SELECT id FROM plan WHERE digest = ?", [digest]).fetchone()
        return int(number)

    def land(self, landing: Landing) -> None:
        """Store a chunk atomically; storing it again changes nothing, any other landing of a stored trial is refused."""
        with clear_errors(self.directory, "nothing of this chunk was kept"):
            if self._has(landing):
                return
            cells = self._check(landing)
            path = file_of(self.directory, landing.plan, landing.chunk)
            stamp = write_tensors(path, landing) if landing.tensors else None
            try:
                with transaction(self._connection):
                    self._insert(landing, cells, stamp)
            except BaseException as error:
                if stamp is not None and not self._has(landing):  # an interrupt may come right after the commit
                    path.unlink(missing_ok=True)
                if isinstance(
                    error, sqlite3.IntegrityError
                ):  # `_check` passed, so rows without their record are in the way
                    raise InputError(damaged(self.directory / DATABASE, error)) from error
                raise

    def _has(self, landing: Landing) -> bool:
        """Return whether this chunk is stored with exactly these trials."""
        stored = self._connection.execute(
            "SELECT trial FROM record WHERE chunk = (SELECT id FROM chunk WHERE plan = ? AND name = ?) ORDER BY place",
            [landing.plan, landing.chunk],
        )
        return [trial for (trial,) in stored] == [rows.pack_trial(record.trial) for record in landing.records]

    def _check(self, landing: Landing) -> dict[str, int]:
        """Return the number of each cell that the landing names, or raise if it cannot be stored."""
        find = self._connection.execute
        if find("SELECT 1 FROM plan WHERE id = ?", [landing.plan]).fetchone() is None:
            raise InputError(
                f"chunk {landing.chunk} names plan {landing.plan}, which the run does not hold: add_plan first"
            )
        if find("SELECT 1 FROM chunk WHERE plan = ? AND name = ?", [landing.plan, landing.chunk]).fetchone():
            raise InputError(f"chunk {landing.chunk} of plan {landing.plan} is stored already, with other trials")
        cells = {}
        for name in {record.cell for record in landing.records}:
            cell = find("SELECT id FROM cell WHERE name = ?", [name]).fetchone()
            if cell is None:
                raise InputError(f"chunk {landing.chunk} names cell {name!r}, which the run does not hold: renew first")
            cells[name] = int(cell[0])
        for record in landing.records:
            if find("SELECT 1 FROM record WHERE trial = ?", [rows.pack_trial(record.trial)]).fetchone():
                raise InputError(f"trial {record.trial} of chunk {landing.chunk} is stored already, in another chunk")
        return cells

    def _insert(self, landing: Landing, cells: Mapping[str, int], stamp: Stamp | None) -> None:
        write = self._connection
        (session,) = write.execute("SELECT max(id) FROM session").fetchone()
        size, digest = (stamp.size, stamp.sha256) if stamp else (None, None)
        chunk = write.execute(
            "INSERT INTO chunk (plan, name, session, landed, seconds, trials, size, sha256) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [landing.plan, landing.chunk, session, now(), float(landing.seconds), len(landing.records), size, digest],
        ).lastrowid
        assert chunk is not None
        (last,) = write.execute("SELECT ifnull(max(id), 0) FROM record").fetchone()
        numbered = list(enumerate(landing.records, last + 1))
        write.executemany(
            f"INSERT INTO record ({rows.RECORD}) VALUES ({_marks(rows.RECORD)})",
            (
                rows.record_row(record, id=id, cell=cells[record.cell], chunk=chunk, place=id - last - 1)
                for id, record in numbered
            ),
        )
        write.executemany(
            f"INSERT INTO sample ({rows.SAMPLE}) VALUES ({_marks(rows.SAMPLE)})",
            (row for id, record in numbered for row in rows.sample_rows(record, id)),
        )


def _json(data: Mapping[str, object]) -> str:
    return json.dumps(dict(data))


def _marks(columns: str) -> str:
    return ", ".join("?" * len(columns.split(", ")))


_READERS = 4  # hashing releases the GIL; more threads would only wait for the disk


@dataclass(frozen=True, slots=True)
class _Chunk:
    id: int
    path: Path
    trials: int
    stamp: Stamp


def drop_what_is_broken(directory: Path, connection: sqlite3.Connection) -> list[str]:
    """Drop unfinished files, unreferenced tensor files, and chunks whose file is missing or altered; return messages."""
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
    """Delete files of a killed writer; their chunks were never stored, so nothing is lost."""
    tensors = [path for path in make_folder(directory / TENSORS).iterdir() if path not in known and is_ours(path)]
    scenario = directory / (SCENARIO + PART)
    parts = [path for path in tensors if path.suffix == PART] + ([scenario] if scenario.is_file() else [])
    strays = [path for path in tensors if path.suffix == SUFFIX]
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
