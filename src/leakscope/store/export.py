"""A run as one file for other programs: CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.store.disk import clear_errors
from leakscope.store.durable import replacing
from leakscope.store.flat import Column, Kind, flat_table
from leakscope.store.run import Run


def export(run: Run, to: str, out: Path, *, current: bool = True, settings: Sequence[str] | None = None) -> Path:
    """Write the flat table of a run (see `flat_table`) to `out`, whole or not at all, and return `out`.

    `to` is one of csv, json, parquet. All forms hold the same rows, columns and values, with one difference: JSON knows no
    infinity and has null there.
    """
    write = lookup(EXPORTS, to, "export format")
    if out.is_dir():
        raise InputError(f"{out} is a directory; the export needs the name of a file")
    table = flat_table(run, current=current, settings=settings)
    with clear_errors(out.absolute().parent, f"{out.name} was not written"), replacing(out) as file:
        write(table, file)
    return out


def write_csv(table: Sequence[Column], file: IO[bytes]) -> None:
    """Write a header and one line for each row; empty where there is nothing, true and false in small letters."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow([column.name for column in table])
    lines.writerows(zip(*(_spoken(column) for column in table), strict=True))
    text.detach()


def write_json(table: Sequence[Column], file: IO[bytes]) -> None:
    """Write an array of one object for each row, one row on each line."""
    names = [column.name for column in table]
    before = b"[\n"
    for row in zip(*(_without_infinity(column) for column in table), strict=True):
        line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False)
        file.write(before + line.encode())
        before = b",\n"
    file.write(b"\n]\n" if before != b"[\n" else b"[]\n")


def write_parquet(table: Sequence[Column], file: IO[bytes]) -> None:
    """Write one Parquet table: string, int64, double and bool, every column nullable."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError('the export to parquet needs pyarrow: pip install "leakscope[export]"') from None
    types = {
        Kind.TEXT: pyarrow.string(),
        Kind.WHOLE: pyarrow.int64(),
        Kind.REAL: pyarrow.float64(),
        Kind.FLAG: pyarrow.bool_(),
    }
    arrays = [pyarrow.array(column.values, type=types[column.kind]) for column in table]
    pyarrow.parquet.write_table(
        pyarrow.table(arrays, names=[column.name for column in table]), file, compression="zstd"
    )


EXPORTS: Mapping[str, Callable[[Sequence[Column], IO[bytes]], None]] = {
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
}


def _spoken(column: Column) -> list[Any]:
    if column.kind is not Kind.FLAG:
        return column.values
    return [value if value is None else str(value).lower() for value in column.values]


def _without_infinity(column: Column) -> list[Any]:
    if column.kind is not Kind.REAL:
        return column.values
    return [value if value is None or math.isfinite(value) else None for value in column.values]
