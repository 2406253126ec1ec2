"""The rows of a program in `rows.json`: one for each cell, with the raw numbers behind every measure."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.store.disk import clear_errors, locked, replacing

FILE, LOCK, FORMAT = "rows.json", "lock", 1
DIGITS = 6  # of the numbers of a curve
Place: TypeAlias = Mapping[str, Plain]
Say: TypeAlias = Callable[[str], None]  # shows a line to the user
Numbers: TypeAlias = Mapping[str, Sequence[float]]  # by measure: the numbers behind its mean and interval
CurveData: TypeAlias = Mapping[str, Sequence[Any]]  # {"x": [...], "y": [[...] for each client]}
Curves: TypeAlias = Mapping[str, CurveData]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve for each client: increasing positions `x`, and for each client a number at each (None: not finite)."""

    x: tuple[float, ...]
    y: tuple[tuple[float | None, ...], ...]

    def places(self) -> Iterator[tuple[float, tuple[float | None, ...]]]:
        """Yield each position with the numbers of all clients."""
        yield from zip(self.x, zip(*self.y, strict=True), strict=True)


class Keep(Protocol):
    """Where a program looks up existing rows and stores new ones."""

    @property
    def directory(self) -> Path | None:
        """Return the directory of the rows, for other files such as trained networks; None if there is none."""

    def done(self, key: str, where: Place | None = None) -> bool:
        """Return whether a row exists; `where` is its place, as passed to `add`, for listing planned rows."""

    def add(self, key: str, where: Place, values: Numbers, *, curves: Curves | None = None) -> None:
        """Store a row: its place in our words, and its numbers.

        The numbers must be independent: one for each client, run or draw, not one for each image of a client. `curves` maps names
        to positions `x` and, for each client, as many numbers `y`.
        """

    def values(self, key: str) -> Mapping[str, Sequence[float | None]]:
        """Return the numbers of an existing row, for computing other rows from them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a program: key, place, numbers by measure (None if not finite), curves by name."""

    key: str
    where: Place
    values: Mapping[str, tuple[float | None, ...]]
    curves: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a program so far, its settings, the facts of its run, and the seconds spent."""

    settings: Mapping[str, object]
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class PlannedRows:
    """The rows a program asks for; each counts as done, so that nothing is computed."""

    def __init__(self) -> None:
        """Start with no row."""
        self.directory: Path | None = None
        self.places: dict[str, Place] = {}

    def done(self, key: str, where: Place | None = None) -> bool:
        """Return True; store the row's place."""
        self.places[key] = dict(where or {})
        return True

    def add(self, key: str, where: Place, values: Numbers, *, curves: Curves | None = None) -> None:
        """Raise: a program must not add a row without asking `done`, nor one that is done."""
        del where, values, curves
        raise InputError(f"row {key!r} was computed without checking whether it is stored")

    def values(self, key: str) -> Mapping[str, tuple[float | None, ...]]:
        """Return no numbers: nothing is computed."""
        del key
        return {}


class KeptRows:
    """Rows in a directory. Each `add` rewrites the whole file atomically; `on_add` gets the key of every added row."""

    def __init__(self, directory: Path, settings: Mapping[str, object], facts: Mapping[str, str]) -> None:
        """Read the existing rows; raise if they have other settings."""
        self.directory: Path | None = directory
        self.path = directory / FILE
        self.settings, self.facts = _plain(settings), dict(facts)
        self.rows: dict[str, Row] = {}
        self.asked: set[str] = set()
        self.added = 0
        self.on_add: Say = lambda _: None
        self.began, self.before = time.perf_counter(), 0.0
        if rows_exist(directory):
            stored = read_rows(directory)
            self.before = stored.seconds
            if stored.settings != self.settings:
                raise InputError(
                    f"{self.path} was made with other settings of the item; take another --out or remove it"
                )
            self.rows = {row.key: row for row in stored.rows}

    def done(self, key: str, where: Place | None = None) -> bool:
        """Return whether a row exists."""
        del where
        self.asked.add(key)
        return key in self.rows

    def add(self, key: str, where: Place, values: Numbers, *, curves: Curves | None = None) -> None:
        """Store a row and write the file; raises for a key that exists or that was not asked for."""
        if key in self.rows or key not in self.asked:
            raise InputError(f"row {key!r} was computed without checking whether it is stored")
        self.rows[key] = _row(key, where, values, curves or {})
        self.added += 1
        self._write()
        self.on_add(key)

    def values(self, key: str) -> Mapping[str, tuple[float | None, ...]]:
        """Return the numbers of an existing row."""
        return self.rows[key].values

    def _write(self) -> None:
        rows = [_row_data(row) for row in self.rows.values()]
        seconds = self.before + time.perf_counter() - self.began
        facts = {**self.facts, "seconds": f"{seconds:.0f}", "trials": str(len(rows))}
        data = {"format": FORMAT, "facts": facts, "settings": self.settings, "rows": rows}
        with clear_errors(self.path.parent, "earlier rows are saved"), replacing(self.path) as file:
            file.write(json.dumps(data, allow_nan=False).encode())


@contextmanager
def keeping(directory: Path, settings: Mapping[str, object], facts: Mapping[str, str]) -> Iterator[KeptRows]:
    """Lock the rows of a directory for one program."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory} cannot be written ({error.strerror})") from None
    with locked(directory / LOCK):
        yield KeptRows(directory, settings, facts)


def rows_exist(directory: Path) -> bool:
    """Return whether a directory holds rows of a program."""
    return (directory / FILE).is_file()


def read_rows(directory: Path) -> Rows:
    """Return the rows in a directory."""
    path = directory / FILE
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise InputError(f"{path} has format {data['format']!r}, this version reads {FORMAT}")
        rows = [_row(str(row["key"]), row["where"], row["values"], row.get("curves", {})) for row in data["rows"]]
        return Rows(dict(data["settings"]), tuple(rows), dict(data["facts"]), float(data["facts"].get("seconds", 0)))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no rows of a program ({type(error).__name__})") from None


def _row(key: str, where: Place, values: Mapping[str, Sequence[float | None]], curves: Curves) -> Row:
    numbers = {name: tuple(_number(value) for value in each) for name, each in values.items()}
    kept = {name: _curve(f"curve {name!r} of row {key!r}", curve) for name, curve in curves.items()}
    return Row(key, dict(where), numbers, kept)


def _row_data(row: Row) -> Mapping[str, object]:
    curves = {name: {"x": curve.x, "y": curve.y} for name, curve in row.curves.items()}
    return {"key": row.key, "where": row.where, "values": row.values} | ({"curves": curves} if curves else {})


def _curve(name: str, data: CurveData) -> Curve:
    """Return a curve; raises if its positions do not increase or a client lacks a number."""
    x, y = [_rounded(v) for v in data["x"]], [tuple(_rounded(v) for v in client) for client in data["y"]]
    places = tuple(v for v in x if v is not None)
    if len(places) < len(x) or not places or any(b <= a for a, b in itertools.pairwise(places)):
        raise InputError(f"{name}: x must be finite numbers that rise, got {list(data['x'])!r:.80}")
    if not y or any(len(client) != len(places) for client in y):
        raise InputError(f"{name}: y must have {len(places)} numbers for each client, as x has")
    return Curve(places, tuple(y))


def _rounded(value: float | None) -> float | None:
    known = _number(value)
    return None if known is None else float(f"{known:.{DIGITS}g}")


def _number(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _plain(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings as they are read back from a file."""
    return dict(json.loads(json.dumps(settings)))
