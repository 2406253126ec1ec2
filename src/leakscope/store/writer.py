"""The write side of a run: chunks land whole or not at all, and never twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.store import rows
from leakscope.store.check import drop_what_is_broken
from leakscope.store.connection import transaction
from leakscope.store.disk import clear_errors
from leakscope.store.landing import Landing
from leakscope.store.scenario_file import write_scenario
from leakscope.store.schema import begin_session, now
from leakscope.store.tensor_files import Stamp, file_of, write_tensors

_NOTHING = "nothing was changed"


class Writer:
    """The one who writes a run, made by `Run.writing`. Everything a method did is on the disk when it returns."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        self.directory = directory
        self._connection = connection
        self._dropped: list[str] | None = None

    def verify(self) -> list[str]:
        """Return, in sentences, what had to be dropped for being broken; its trials count as not done.

        Entering `Run.writing` does the work, once; this tells what came of it.
        """
        if self._dropped is None:
            with clear_errors(self.directory, _NOTHING):
                self._dropped = drop_what_is_broken(self.directory, self._connection)
        return list(self._dropped)

    def renew(self, scenario: str, cells: Sequence[Cell], facts: Mapping[str, str]) -> None:
        """Make these the scenario, the current cells (in this order) and the facts of the run.

        Cells that are no longer named stay stored with their records, but are not current.
        """
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
        """Return the number of a plan (JSON data), storing it unless the same plan is stored already."""
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
        """Store a chunk whole or not at all.

        The same chunk with the same trials again changes nothing. Any other landing of a trial that is stored is refused.
        """
        with clear_errors(self.directory, "nothing of this chunk was kept"):
            if self._has(landing):
                return
            cells = self._check(landing)
            path = file_of(self.directory, landing.plan, landing.chunk)
            stamp = write_tensors(path, landing) if landing.tensors else None
            try:
                with transaction(self._connection):
                    self._insert(landing, cells, stamp)
            except BaseException:
                if stamp is not None and not self._has(landing):  # an interrupt may come just after the commit
                    path.unlink(missing_ok=True)
                raise

    def _has(self, landing: Landing) -> bool:
        """Return whether this chunk is stored with exactly these trials."""
        stored = self._connection.execute(
            "SELECT trial FROM record WHERE chunk = (SELECT id FROM chunk WHERE plan = ? AND name = ?) ORDER BY place",
            [landing.plan, landing.chunk],
        )
        return [trial for (trial,) in stored] == [rows.pack_trial(record.trial) for record in landing.records]

    def _check(self, landing: Landing) -> dict[str, int]:
        """Return the number of each cell that the landing names, or raise for what cannot be stored."""
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
