"""A run as one file for other programs: CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.core.registry import lookup
from leakscope.store.columns import FIELDS, LEARNED, MORE_FIELDS, learned_names, read_columns
from leakscope.store.disk import clear_errors, writing_to
from leakscope.store.run import Run
from leakscope.store.schema import reading


def export(run: Run, to: str, out: Path, *, current: bool = True, settings: Sequence[str] | None = None) -> Path:
    """Write the flat table of a run as csv, json (null for infinity) or parquet, and return `out`; see `writing_to`."""
    write = lookup(EXPORTS, to, "export format")
    if out.is_dir():
        raise InputError(f"{out} is a directory; the export needs the name of a file")
    table = flat_table(run, current=current, settings=settings)
    with clear_errors(out.absolute().parent, f"{out.name} was not written"), writing_to(out) as file:
        write(table, file)
    return out


def write_csv(table: Sequence[Column], file: IO[bytes]) -> None:
    """Write a header and one line per row; missing values are empty, booleans are true and false."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow([column.name for column in table])
    lines.writerows(zip(*(_spoken(column) for column in table), strict=True))
    text.detach()


def write_json(table: Sequence[Column], file: IO[bytes]) -> None:
    """Write an array with one object per row, one per line."""
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


def _spoken(column: Column) -> list[object]:
    if column.kind is Kind.TEXT:
        return [value if value is None else no_formula(str(value)) for value in column.values]
    if column.kind is not Kind.FLAG:
        return column.values
    return [value if value is None else str(value).lower() for value in column.values]


def no_formula(text: str) -> str:
    """Return a text for a CSV cell; one that a spreadsheet would run as a formula gets an apostrophe, a number stays.

    >>> [no_formula(text) for text in ("=1+1", "@sum", "-1+1", "-0.5", "plain")]
    ["'=1+1", "'@sum", "'-1+1", '-0.5', 'plain']
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _without_infinity(column: Column) -> list[object]:
    if column.kind is not Kind.REAL:
        return column.values
    return [value if value is None or math.isfinite(cast(float, value)) else None for value in column.values]


_WHOLE = range(-(2**63), 2**63)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|inf)")


class Kind(Enum):
    """The type of a column; every column may also hold None."""

    TEXT = "text"
    WHOLE = "whole"
    REAL = "real"
    FLAG = "flag"


class Column(NamedTuple):
    """One column of the table; None: missing or NaN."""

    name: str
    kind: Kind
    values: list[object]


# Columns of every table, in this order.
FIXED: Mapping[str, Kind] = {
    **dict.fromkeys(("trial", "cell"), Kind.TEXT),
    **dict.fromkeys(("baseline", "current"), Kind.FLAG),
    **dict.fromkeys(("number", "seed"), Kind.WHOLE),
    "outcome": Kind.TEXT,
    **dict.fromkeys(("iterations", "evaluations"), Kind.WHOLE),
    **dict.fromkeys(("mismatch", "label_overlap", "seconds"), Kind.REAL),
    "version": Kind.TEXT,
    **dict.fromkeys(("sample", "item", "label", "guess"), Kind.WHOLE),
    **dict.fromkeys(("mse", "psnr", "ssim"), Kind.REAL),
    **dict.fromkeys(("label_correct", "recovered", "finite"), Kind.FLAG),
}
_NONE_IS_MINUS_ONE = ("sample", "item", "label", "guess", "label_correct")


def flat_table(run: Run, *, current: bool = True, settings: Sequence[str] | None = None) -> list[Column]:
    """Return the columns of the flat table, rows ordered by cell, number, landing and sample.

    FIXED columns come first, then `learned.<name>` for values that an attack recovered beside the images, `axis.<name>` for
    every axis, and `setting.<path>` for every leaf of the cells' settings (only at or below the paths in `settings`, if given).
    `current=False` adds the cells that a changed scenario no longer names.
    """
    cells, now = run.cells(current=False), {cell.id for cell in run.cells()}
    chosen = [number for number, cell in enumerate(cells, 1) if cell.id in now or not current]
    with reading(run.directory) as connection:
        numbers = learned_names(connection, chosen)
        scores = read_columns(connection, chosen, [*FIELDS, *MORE_FIELDS, *numbers])
    codes = scores["cell"].tolist()
    values = {name: _plain(name, scores[name]) for name in FIXED if name in scores}
    values["cell"] = [cells[code].id for code in codes]
    values["baseline"] = [cells[code].baseline for code in codes]
    values["current"] = [cells[code].id in now for code in codes]
    axes = _spread([{f"axis.{name}": value for name, value in cell.axes.items()} for cell in cells])
    fixed = [Column(name, kind, values[name]) for name, kind in FIXED.items()]
    learned = [Column(name, Kind.REAL, _plain(name, scores[name])) for name in numbers]
    return [*fixed, *learned, *_of_cells(axes, codes), *_of_cells(_settings(cells, settings), codes)]


def _plain(name: str, column: np.typing.NDArray[np.generic]) -> list[object]:
    """Return a column as a list, with None for missing values."""
    values: list[object] = column.tolist()
    if name.startswith(LEARNED) or FIXED[name] is Kind.REAL:
        return [None if value != value else value for value in values]
    if name in _NONE_IS_MINUS_ONE:
        values = [None if value == -1 else value for value in values]
    if name == "label_correct":
        return [value if value is None else bool(value) for value in values]
    return values


def _of_cells(of_cell: Mapping[str, list[object]], codes: list[int]) -> Iterator[Column]:
    """Yield columns that repeat a cell's value on each of its rows, in a type that holds the values of all cells."""
    for name, values in of_cell.items():
        kind = _kind(values)
        fitted = [_fit(value, kind) for value in values]
        yield Column(name, kind, [fitted[code] for code in codes])


def _kind(values: Sequence[object]) -> Kind:
    """Return the narrowest type of flag, whole, real, text that holds all values."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return Kind.FLAG
    if types == {int} and all(value in _WHOLE for value in values if value is not None):
        return Kind.WHOLE
    return Kind.REAL if types and types <= {int, float} else Kind.TEXT


def _fit(value: object, kind: Kind) -> object:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if kind is Kind.REAL:
        return float(cast(float, value))
    return value if kind is not Kind.TEXT or isinstance(value, str) else json.dumps(value)


def _settings(cells: Sequence[Cell], paths: Sequence[str] | None) -> dict[str, list[object]]:
    leaves = _spread([dict(_leaves(cell.settings, "setting")) for cell in cells])
    if paths is None:
        return leaves
    for path in paths:
        if not any(_below(name, path) for name in leaves):
            known = ", ".join(name.removeprefix("setting.") for name in leaves)
            raise InputError(f"settings: no cell has {path!r}; there are {known}")
    return {name: values for name, values in leaves.items() if any(_below(name, path) for path in paths)}


def _below(name: str, path: str) -> bool:
    return name == f"setting.{path}" or name.startswith(f"setting.{path}.")


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield every leaf of nested mappings with its dotted path; a list is one leaf."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}")
    else:
        yield path, value


def _spread(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the sorted union of the rows' names, each with its value in every row, None if absent."""
    names = sorted({name for row in rows for name in row})
    return {name: [row.get(name) for row in rows] for name in names}
