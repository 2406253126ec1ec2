"""Records as rows of two tables and back, and all scores as columns with one row per sample of each trial."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from leakscope.core.errors import InputError
from leakscope.core.record import Record, SampleScore
from leakscope.core.registry import lookup
from leakscope.store.schema import MOST, check_rows, choose_rows, lacks

Columns: TypeAlias = dict[str, np.ndarray[Any, Any]]

_BATCH = 20_000
_ORDER = ("cell", "number")
_TEXT, _WHOLE, _REAL, _FLAG, _MAYBE = object, np.int64, np.float64, np.bool_, np.int8

# name: (SQL expression, column type). r is the record, s its sample (absent if a trial has none).
FIELDS: Mapping[str, tuple[str, type]] = {
    "trial": ("r.trial", _TEXT),
    "cell": ("r.cell - 1", _WHOLE),
    "number": ("r.number", _WHOLE),
    "seed": ("r.seed", _WHOLE),
    "outcome": ("r.outcome", _TEXT),
    "iterations": ("r.iterations", _WHOLE),
    "evaluations": ("r.evaluations", _WHOLE),
    "mismatch": ("r.mismatch", _REAL),
    "label_overlap": ("r.label_overlap", _REAL),
    "seconds": ("r.seconds", _REAL),
    "sample": ("ifnull(s.sample, -1)", _WHOLE),
    "label": ("ifnull(s.label, -1)", _WHOLE),
    "guess": ("ifnull(s.guess, -1)", _WHOLE),
    "mse": ("s.mse", _REAL),
    "psnr": ("s.psnr", _REAL),
    "ssim": ("s.ssim", _REAL),
    "label_correct": ("ifnull(s.label_correct, -1)", _MAYBE),
    "recovered": ("ifnull(s.recovered, 0)", _FLAG),
    "finite": ("ifnull(s.finite, 0)", _FLAG),
}
# Only for the export: unpacking lists in SQLite is slow.
MORE_FIELDS: Mapping[str, tuple[str, type]] = {
    "item": ("ifnull(json_extract(r.items, '$[' || s.place || ']'), -1)", _WHOLE),
    "version": ("r.version", _TEXT),
}
LEARNED = "learned."  # prefix of a value that the attack recovered beside the images, such as alpha


def read_columns(connection: sqlite3.Connection, cells: Sequence[int], names: Sequence[str] = tuple(FIELDS)) -> Columns:
    """Return the named columns of these cells (by number), ordered by cell, number, landing and sample."""
    check_rows(connection, cells)
    fields = {name: _field(name, connection) for name in (*names, *_ORDER)}
    cursor = connection.execute(_query([expression for expression, _ in fields.values()], connection, cells))
    batches: dict[str, list[np.typing.ArrayLike]] = {name: [np.empty(0, kind)] for name, (_, kind) in fields.items()}
    while batch := cursor.fetchmany(_BATCH):
        for (name, (_, kind)), values in zip(fields.items(), zip(*batch, strict=True), strict=True):
            batches[name].append(np.array(_plain(name, values), dtype=kind))
    whole = {name: np.concatenate(parts) for name, parts in batches.items()}
    order = np.lexsort([whole[name] for name in reversed(_ORDER)])
    return {name: whole[name][order] for name in names}


def learned_names(connection: sqlite3.Connection, cells: Sequence[int]) -> list[str]:
    """Return the names of the `learned.<name>` columns that trials of these cells have."""
    if lacks(connection, "learned"):
        return []
    chosen = ", ".join(str(int(cell)) for cell in cells)
    stored = connection.execute(
        f"SELECT DISTINCT learned FROM record WHERE learned IS NOT NULL AND +cell IN ({chosen})"
    )
    return sorted({f"{LEARNED}{name}" for (text,) in stored for name in learned_from(text)})


def _field(name: str, connection: sqlite3.Connection) -> tuple[str, type]:
    if name.startswith(LEARNED):
        return "NULL" if lacks(connection, "learned") else "r.learned", _REAL
    return lookup({**FIELDS, **MORE_FIELDS}, name, "column")


def _plain(name: str, values: Sequence[Value]) -> Sequence[Value]:
    """Return the values of a column in a form that numpy accepts."""
    if name == "trial":
        return [unpack_trial(value) for value in cast(Sequence[str | bytes], values)]
    if name.startswith(LEARNED):
        number = name.removeprefix(LEARNED)
        return [learned_from(value).get(number) for value in cast(Sequence[str | None], values)]
    return values


def _query(expressions: Sequence[str], connection: sqlite3.Connection, cells: Sequence[int]) -> str:
    """Return the query for these cells; rows come as stored, because numpy sorts faster than SQLite."""
    chosen, _ = choose_rows(connection, cells)
    return (
        f"SELECT {', '.join(expressions)} FROM record r LEFT JOIN sample s ON s.record = r.id "
        f"WHERE {chosen} ORDER BY r.id, s.place"
    )


Value: TypeAlias = str | bytes | int | float | None
Row: TypeAlias = tuple[Value, ...]

_HEX = re.compile(r"(?:[0-9a-f]{2})+")
RECORD = (
    "id, trial, cell, chunk, place, number, seed, items, outcome, iterations, evaluations, mismatch, label_overlap, "
    "seconds, version, learned"
)
SAMPLE = "record, place, sample, label, guess, mse, psnr, ssim, label_correct, recovered, finite"


def pack_trial(trial: str) -> str | bytes:
    """Return a trial id in stored form: a hexadecimal hash as bytes, half as long."""
    return bytes.fromhex(trial) if _HEX.fullmatch(trial) else trial


def unpack_trial(stored: str | bytes) -> str:
    """Return a trial id from its stored form."""
    return stored.hex() if isinstance(stored, bytes) else stored


def record_row(record: Record, *, id: int, cell: int, chunk: int, place: int) -> Row:
    """Return the row of a record with plain Python numbers; SQLite would store numpy's as raw bytes."""
    return (
        id,
        pack_trial(record.trial),
        cell,
        chunk,
        place,
        _count(record.number),
        int(record.seed),
        json.dumps([int(item) for item in record.items], separators=(",", ":")),
        record.outcome,
        _count(record.iterations),
        _count(record.evaluations),
        _number(record.mismatch),
        _number(record.label_overlap),
        _number(record.seconds),
        record.version,
        json.dumps({name: float(value) for name, value in record.learned.items()}) if record.learned else None,
    )


def sample_rows(record: Record, id: int) -> Iterator[Row]:
    """Yield the rows of a record's samples, in order."""
    for place, score in enumerate(record.samples):
        yield (
            id,
            place,
            _count(score.sample),
            _count(score.label),
            None if score.guess is None else _count(score.guess),
            _number(score.mse),
            _number(score.psnr),
            _number(score.ssim),
            None if score.label_correct is None else int(score.label_correct),
            int(score.recovered),
            int(score.finite),
        )


def record_from(row: Sequence[Value], cell: str, samples: tuple[SampleScore, ...]) -> Record:
    """Return the record of a row that begins with the columns of RECORD."""
    stored = dict(zip(RECORD.split(", "), row, strict=False))
    return Record(
        trial=unpack_trial(cast(str | bytes, stored["trial"])),
        cell=cell,
        items=tuple(int(item) for item in json.loads(cast(str, stored["items"]))),
        mismatch=_float(cast(float | str | None, stored["mismatch"])),
        label_overlap=_float(cast(float | str | None, stored["label_overlap"])),
        seconds=float(cast(float, stored["seconds"])),
        samples=samples,
        learned=learned_from(cast(str | None, stored["learned"])),
        **{name: stored[name] for name in ("number", "seed", "outcome", "iterations", "evaluations", "version")},  # type: ignore[arg-type]
    )


def learned_from(stored: str | None) -> dict[str, float]:
    """Return the values that an attack recovered beside the images; empty if none are stored."""
    return {} if stored is None else {name: float(cast(float, value)) for name, value in json_object(stored).items()}


def json_object(text: str) -> dict[str, object]:
    """Return the JSON object that a text holds."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"{text[:40]!r} is no JSON object")
    return content


def axes_from(text: str) -> dict[str, str | int | float | bool | None]:
    """Return the values of a cell on the axes of its sweep."""
    axes = json_object(text)
    if nested := [name for name, value in axes.items() if isinstance(value, dict | list)]:
        raise ValueError(f"axis {nested[0]!r:.40} has no single value")
    return cast(dict[str, str | int | float | bool | None], axes)


def sample_from(
    row: tuple[int, int, int, int, int | None, float | str, float | str, float | str | None, int | None, int, int],
) -> SampleScore:
    """Return the score of a row with the columns of SAMPLE."""
    return SampleScore(
        sample=row[2],
        label=row[3],
        guess=row[4],
        mse=float(row[5]),
        psnr=float(row[6]),
        ssim=_float(row[7]),
        label_correct=None if row[8] is None else bool(row[8]),
        recovered=bool(row[9]),
        finite=bool(row[10]),
    )


def _count(value: int) -> int:
    """Return a whole number; one that readers take for damage is refused."""
    if not -MOST <= value <= MOST:
        raise InputError(f"counts and labels of a record must lie within 2**48, got {value}")
    return int(value)


def _number(value: float | None) -> Value:
    """Return a number in stored form: NaN as text, because SQLite turns it into NULL, which stands for None."""
    if value is None:
        return None
    number = float(value)
    return "nan" if number != number else number


def _float(stored: float | str | None) -> float | None:
    return None if stored is None else float(stored)
