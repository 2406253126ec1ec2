"""A Record as rows of two tables, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from leakscope.core.record import Record, SampleScore

Value: TypeAlias = str | bytes | int | float | None
Row: TypeAlias = tuple[Value, ...]

_HEX = re.compile(r"(?:[0-9a-f]{2})+")
RECORD = (
    "id, trial, cell, chunk, place, number, seed, items, outcome, iterations, evaluations, mismatch, label_overlap, "
    "seconds, version, learned"
)
SAMPLE = "record, place, sample, label, guess, mse, psnr, ssim, label_correct, recovered, finite"


def pack_trial(trial: str) -> str | bytes:
    """Return a trial's id as it is stored: a hash in hexadecimal as its bytes, half as long."""
    return bytes.fromhex(trial) if _HEX.fullmatch(trial) else trial


def unpack_trial(stored: str | bytes) -> str:
    """Return a trial's id from what is stored."""
    return stored.hex() if isinstance(stored, bytes) else stored


def record_row(record: Record, *, id: int, cell: int, chunk: int, place: int) -> Row:
    """Return the row of a record; every number is made a plain one, as sqlite would store numpy's as raw bytes."""
    return (
        id,
        pack_trial(record.trial),
        cell,
        chunk,
        place,
        int(record.number),
        int(record.seed),
        json.dumps([int(item) for item in record.items], separators=(",", ":")),
        record.outcome,
        int(record.iterations),
        int(record.evaluations),
        _number(record.mismatch),
        _number(record.label_overlap),
        _number(record.seconds),
        record.version,
        json.dumps({name: float(value) for name, value in record.learned.items()}) if record.learned else None,
    )


def sample_rows(record: Record, id: int) -> Iterator[Row]:
    """Yield the rows of a record's samples, in their order."""
    for place, score in enumerate(record.samples):
        yield (
            id,
            place,
            int(score.sample),
            int(score.label),
            None if score.guess is None else int(score.guess),
            _number(score.mse),
            _number(score.psnr),
            _number(score.ssim),
            None if score.label_correct is None else int(score.label_correct),
            int(score.recovered),
            int(score.finite),
        )


def record_from(row: Sequence[Any], cell: str, samples: tuple[SampleScore, ...]) -> Record:
    """Return the record of a row that begins with the columns of RECORD."""
    stored = dict(zip(RECORD.split(", "), row, strict=False))
    return Record(
        trial=unpack_trial(stored["trial"]),
        cell=cell,
        items=tuple(json.loads(stored["items"])),
        mismatch=_float(stored["mismatch"]),
        label_overlap=_float(stored["label_overlap"]),
        seconds=float(stored["seconds"]),
        samples=samples,
        learned=learned_from(stored["learned"]),
        **{name: stored[name] for name in ("number", "seed", "outcome", "iterations", "evaluations", "version")},
    )


def learned_from(stored: str | None) -> dict[str, float]:
    """Return what an attack found beside the pictures; nothing where nothing is stored."""
    return {} if stored is None else json.loads(stored)


def sample_from(row: Sequence[Any]) -> SampleScore:
    """Return the score of a row (the columns of SAMPLE in their order)."""
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


def _number(value: float | None) -> Value:
    """Return a number as it is stored: NaN as text, since sqlite would make it NULL, which here means None."""
    if value is None:
        return None
    number = float(value)
    return "nan" if number != number else number


def _float(stored: float | str | None) -> float | None:
    return None if stored is None else float(stored)
