"""A stored run: created once, one writer, many readers."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, cast

from leakscope.core.errors import InputError
from leakscope.core.pages import notebook_html, write_page
from leakscope.core.record import Cell, Record
from leakscope.store import columns as rows
from leakscope.store.columns import FIELDS, Columns, learned_names, read_columns
from leakscope.store.directory import LOCK, WORK, check_scratch, holds_run, make, migrated
from leakscope.store.disk import clear_errors, locked
from leakscope.store.schema import LATER, check_rows, complete, connect_writer, lacks, reading
from leakscope.store.tensor_files import file_of, read_row
from leakscope.store.writer import Writer

if TYPE_CHECKING:
    from torch import Tensor

_CELL = "name, settings, axes, baseline"


@dataclass(frozen=True, slots=True)
class Run:
    """A sweep on disk. Each method reads one consistent snapshot; nothing stays open, so a Run may be copied and shared."""

    directory: Path

    _repr_html_ = notebook_html
    write = write_page

    def __str__(self) -> str:
        done = {cell.id: 0 for cell in self.cells()}
        with reading(self.directory) as connection:
            query = "SELECT cell.name, count(*) FROM record JOIN cell ON cell.id = record.cell GROUP BY cell.id"
            done |= {name: number for name, number in connection.execute(query) if name in done}
        return f"{self.directory}: {sum(done.values()):,} trials in {len(done):,} cells"

    @staticmethod
    def create(directory: Path, scenario: str, facts: Mapping[str, str]) -> Run:
        """Return a new, empty run in a directory that holds nothing else; `facts` are versions, revision, machine, command."""
        return Run(make(Path(directory), scenario, facts))

    @staticmethod
    def open(directory: Path) -> Run:
        """Return the run in a directory, migrated from an older format if needed; anything else is an error."""
        return Run(migrated(Path(directory)))

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return whether a directory holds a run, whatever its format."""
        return holds_run(Path(directory))

    @property
    def work(self) -> Path:
        """The scratch directory of running chunks; the store never reads it."""
        return self.directory / WORK

    def scenario(self) -> str:
        """Return the text of the latest scenario."""
        return str(self.history()[-1]["scenario"])

    def facts(self) -> dict[str, str]:
        """Return the latest facts: versions, revision, machine, command."""
        facts = self.history()[-1]["facts"]
        return {name: str(value) for name, value in cast(dict[str, object], facts).items()}

    def history(self) -> list[dict[str, object]]:
        """Return every scenario and set of facts of the run, oldest first: id, started, scenario, facts."""
        with reading(self.directory) as connection:
            sessions = connection.execute("SELECT id, started, scenario, facts FROM session ORDER BY id").fetchall()
            if not sessions:
                raise ValueError("there is no scenario")
            return [
                {"id": id, "started": started, "scenario": scenario, "facts": rows.json_object(facts)}
                for id, started, scenario, facts in sessions
            ]

    def cells(self, *, current: bool = True) -> list[Cell]:
        """Return the cells of the scenario in its order; or all cells ever stored, which `columns()['cell']` indexes."""
        which = "WHERE place IS NOT NULL ORDER BY place" if current else "ORDER BY id"
        with reading(self.directory) as connection:
            stored = connection.execute(f"SELECT {_CELL} FROM cell {which}")
            return [
                Cell(id=name, settings=rows.json_object(settings), axes=rows.axes_from(axes), baseline=bool(baseline))
                for name, settings, axes, baseline in stored
            ]

    def plans(self) -> list[dict[str, object]]:
        """Return the plans in the order they were added: id, created, plan."""
        with reading(self.directory) as connection:
            plans = []
            for id, created, digest, plan in connection.execute(
                "SELECT id, created, digest, plan FROM plan ORDER BY id"
            ):
                if hashlib.sha256(plan.encode()).digest() != digest:
                    raise ValueError(f"plan {id} is not as it was written")
                plans.append({"id": id, "created": created, "plan": rows.json_object(plan)})
            return plans

    def chunks(self) -> list[dict[str, object]]:
        """Return the chunks as they landed: chunk, plan, session (of `history`), landed, seconds, trials, size (or None)."""
        names = ("chunk", "plan", "session", "landed", "seconds", "trials", "size")
        with reading(self.directory) as connection:
            stored = connection.execute(
                "SELECT name, plan, session, landed, seconds, trials, size FROM chunk ORDER BY id"
            ).fetchall()
        return [dict(zip(names, row, strict=True)) for row in stored]

    def done(self) -> set[str]:
        """Return the ids of all trials that have landed, of current cells and others."""
        with reading(self.directory) as connection:
            return {rows.unpack_trial(trial) for (trial,) in connection.execute("SELECT trial FROM record")}

    def records(self, *, cell: str | None = None, current: bool = True) -> Iterator[Record]:
        """Yield the records by cell (as first stored), number and landing: of one cell, the current ones, or all."""
        with reading(self.directory) as connection:
            numbers = _numbers(connection, None if cell is None else [cell], current=current)
            for number, name in numbers.items():
                yield from _records(connection, number, name)

    def columns(self, *, cells: Sequence[str] | None = None, names: Sequence[str] | None = None) -> Columns:
        """Return the scores of these cells (None: the current ones) as arrays with one row per sample of each trial.

        `names` None: all columns, with `learned.<name>` for values that an attack recovered beside the images; fewer are faster.
        `cell` indexes `cells(current=False)`. Missing values are NaN, or -1 in integer columns. A trial without samples has one
        row, with sample -1. Rows are ordered by cell (as first stored), number, landing and sample.
        """
        with reading(self.directory) as connection:
            numbers = list(_numbers(connection, cells, current=True))
            names = [*FIELDS, *learned_names(connection, numbers)] if names is None else names
            return read_columns(connection, numbers, names)

    def tensors(self, trial: str) -> dict[str, Tensor]:
        """Return the trial's row of every tensor of its chunk, {} if the chunk has none."""
        with reading(self.directory) as connection:
            stored = connection.execute(
                "SELECT chunk.plan, chunk.name, record.place, chunk.size FROM record JOIN chunk ON chunk.id = record.chunk "
                "WHERE trial = ?",
                [rows.pack_trial(trial)],
            ).fetchone()
        if stored is None:
            raise InputError(f"{self.directory} holds no trial {trial!r}")
        plan, name, place, size = stored
        return {} if size is None else dict(read_row(file_of(self.directory, plan, name), place))

    def has_tensors(self) -> bool:
        """Return whether the tensor files of all chunks are there; a copy of the database alone has none."""
        with reading(self.directory) as connection:
            chunks = connection.execute("SELECT plan, name FROM chunk WHERE size IS NOT NULL").fetchall()
        return all(file_of(self.directory, plan, name).is_file() for plan, name in chunks)

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Yield the run's only Writer, after dropping what a crash left broken; a second writer raises InputError."""
        with locked(self.directory / LOCK):
            with clear_errors(self.directory, "nothing was changed"):
                check_scratch(self.directory)
                connection = connect_writer(self.directory)
                complete(connection)
            with closing(connection):
                writer = Writer(self.directory, connection)
                writer.verify()
                yield writer


def _numbers(connection: sqlite3.Connection, names: Sequence[str] | None, *, current: bool) -> dict[int, str]:
    """Return the names of cells by number, in the order they were first stored."""
    which = " WHERE place IS NOT NULL" if current and names is None else ""
    stored = dict(connection.execute(f"SELECT id, name FROM cell{which} ORDER BY id").fetchall())
    if names is None:
        return stored
    unknown = sorted(set(names) - set(stored.values()))
    if unknown:
        raise InputError(f"the run holds no cell {unknown[0]!r}")
    return {number: name for number, name in stored.items() if name in set(names)}


def _records(connection: sqlite3.Connection, cell: int, name: str) -> Iterator[Record]:
    """Yield the records of one cell."""
    check_rows(connection, [cell])
    missing = {column for column in LATER if lacks(connection, column)}
    of_record, of_sample = (
        ", ".join("NULL" if column in missing else f"r.{column}" for column in rows.RECORD.split(", ")),
        ", ".join(f"s.{column}" for column in rows.SAMPLE.split(", ")),
    )
    joined = connection.execute(
        f"SELECT {of_record}, {of_sample} FROM record r LEFT JOIN sample s ON s.record = r.id WHERE r.cell = ? "
        "ORDER BY r.number, r.id, s.place",
        [cell],
    )
    width = len(rows.RECORD.split(", "))
    for _, group in groupby(joined, key=lambda row: row[0]):
        lines = list(group)
        samples = tuple(rows.sample_from(line[width:]) for line in lines if line[width] is not None)
        yield rows.record_from(lines[0], name, samples)
