"""Recorded results: the measured rows of an item at a scale as a JSON file, `<paper>/results/<item>.<scale>.json`.

A row holds its part, its place in the paper's words (axes that all rows share are in `everywhere`), n, the hash of its settings,
indices of its column (`who`: reading, attacker, compared with print or not), source and note, and every measure as [mean], [mean,
low, high] or [mean, low, high, n, what it is over, trials]; omitted n and trials are the row's. `settings` holds each distinct
setting once: the first of a part in full, the others as changes to it. `settings: null` means not recorded; `earlier` says what
differed. Numbers have six digits, non-finite ones are null.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import Measured
from leakscope_papers.measures import Value
from leakscope_papers.naming import Column
from leakscope_papers.planned import Settings
from leakscope_papers.programs.rows import Curve, CurveData
from leakscope_papers.registry import papers

FORMAT, DIGITS = 1, 6
MOST_CURVES = 16_000  # bytes of all curves in a file; longer ones are left out
OPTIONS_OF_PLACES = ("--out", "--data")
SOURCE_FACTS = ("leakscope", "torch", "revision", "device", "date", "command", "page", "seconds", "trials")


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """The columns of one part that attacks table rows: a head for each attack and baseline (with its n), a row for each column."""

    part: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # name of the column, (share, interval) under each head


@dataclass(frozen=True, slots=True)
class Recorded:
    """All rows of an item at a scale, their settings by hash, and the columns of parts that attack table rows."""

    item: str
    scale: str
    rows: tuple[Measured, ...]
    settings: Mapping[str, Settings]
    columns: tuple[ColumnTable, ...] = ()
    reported: tuple[tuple[str, str, str], ...] = ()  # earlier findings without numbers: claim, column, sentence


def recorded_file(item: str, scale: str, out: Path | None = None) -> Path:
    """Return the file for the rows of an item at a scale: in its paper's folder, or in `out` under its full name."""
    if out is not None:
        return out / f"{item}.{scale}.json"
    paper, _, name = item.partition("-")
    return papers()[paper] / "results" / f"{name}.{scale}.json"


def write_recorded(recorded: Recorded, path: Path) -> None:
    """Write the rows of an item as JSON, one row a line."""
    everywhere = _shared_axes(recorded.rows)
    lists = _Lists()
    rows = [_row_data(row, everywhere, lists) for row in recorded.rows]
    if len(json.dumps([row.get("curves") for row in rows])) > MOST_CURVES:
        for row in rows:
            row.pop("curves", None)
    lines = [f'"format": {FORMAT}', f'"item": {_text(recorded.item)}', f'"scale": {_text(recorded.scale)}']
    lines.append(f'"everywhere": {_text(everywhere)}')
    for name, texts in (("who", lists.who), ("sources", lists.sources), ("notes", lists.notes)):
        lines.append(_block(name, list(texts), "[]"))
    settings = _settings_data(recorded)
    lines.append(_block("settings", [f"{_text(digest)}: {_text(each)}" for digest, each in settings.items()], "{}"))
    if recorded.columns:
        tables = [{"part": each.part, "heads": each.heads, "rows": each.rows} for each in recorded.columns]
        lines.append(_block("columns", [_text(table) for table in tables], "[]"))
    if recorded.reported:
        lines.append(_block("reported", [_text(finding) for finding in recorded.reported], "[]"))
    lines.append(_block("rows", [_text(row) for row in rows], "[]"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from None


def read_recorded(path: Path, item: str, scale: str) -> Recorded:
    """Return the rows in a file, which must be of this item and scale."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if (data["format"], data["item"], data["scale"]) != (FORMAT, item, scale):
            raise InputError(
                f"{path} must be format {FORMAT} of {item} at {scale}, got {data['item']} at {data['scale']}"
            )
        settings = _all_settings(data["settings"])
        rows = tuple(_row(row, data) for row in data["rows"])
        lost = [row.settings for row in rows if row.settings and row.settings not in settings]
        if lost:
            raise InputError(f"{path}: settings {lost[0]!r} of a row are not in the file")
        columns = tuple(map(_column_table, data.get("columns", ())))
        reported = tuple((says, column, words) for says, column, words in data.get("reported", ()))
        return Recorded(item, scale, rows, settings, columns, reported)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{path} holds no recorded rows ({type(error).__name__}: {error})") from None


def with_rows_of(path: Path, recorded: Recorded) -> Recorded:
    """Return recorded rows plus those of a file for other cells or other settings, so that parts not rerun keep their rows.

    Of two rows of one cell with the same settings the one of more trials is kept, the new one if equal.
    """
    if not path.is_file():
        return recorded
    old = read_recorded(path, recorded.item, recorded.scale)
    larger = {(place_of(row), row.settings): row.trials for row in old.rows if row.settings}
    fresh = [row for row in recorded.rows if row.trials >= larger.get((place_of(row), row.settings), 0)]
    recorded = replace(recorded, rows=tuple(fresh))
    new = {(place_of(row), row.settings) for row in recorded.rows}
    places = {place_of(row) for row in recorded.rows}
    kept = [
        row
        for row in old.rows
        if (place_of(row), row.settings) not in new and (row.settings or row.earlier or place_of(row) not in places)
    ]
    replaced = [row for row in old.rows if not row.settings and not row.earlier and place_of(row) in places]
    kept += [replace(row, earlier="measured before, settings not recorded") for row in replaced]
    tables = {table.part: table for table in (*old.columns, *recorded.columns)}
    settings = {**old.settings, **recorded.settings}
    return replace(
        recorded, rows=(*recorded.rows, *kept), settings=settings, columns=tuple(tables.values()), reported=old.reported
    )


def place_of(row: Measured) -> tuple[Column, str]:
    """Return the place and column of a row, as a key."""
    return place_key(row.column, row.where)


def place_key(column: Column, where: Mapping[str, Plain]) -> tuple[Column, str]:
    """Return a place and column as a key, whatever the order of the axes."""
    return column, repr(sorted((axis, repr(value)) for axis, value in where.items()))


def _shared_axes(rows: tuple[Measured, ...]) -> dict[str, Plain]:
    """Return the part of a place that all rows share."""
    first = dict(rows[0].where) if rows else {}
    return {axis: value for axis, value in first.items() if all(_has(row, axis, value) for row in rows)}


def _has(row: Measured, axis: str, value: Plain) -> bool:
    return axis in row.where and repr(row.where[axis]) == repr(value)


@dataclass(frozen=True, slots=True)
class _Lists:
    """Values that rows refer to by number, as JSON text -> number."""

    who: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)


def _row_data(row: Measured, everywhere: Mapping[str, Plain], lists: _Lists) -> dict[str, object]:
    facts = {key: row.source[key] for key in SOURCE_FACTS if key in row.source}
    source = _text(facts | {key: _without_places(value) for key, value in facts.items() if key == "command"})
    who = _text([row.column.reading, row.column.attacker, row.column.judged])
    data: dict[str, object] = {
        "part": row.part,
        "where": {axis: value for axis, value in row.where.items() if axis not in everywhere},
        "who": lists.who.setdefault(who, len(lists.who)),
        "n": row.trials,
        "outcomes": dict(row.outcomes),
        "cell": row.cell,
        "earlier": row.earlier,
        "settings": row.settings or None,
        "source": lists.sources.setdefault(source, len(lists.sources)),
        "values": {name: _value_data(value, row.trials) for name, value in row.values.items()},
        "curves": {name: {"x": curve.x, "y": curve.y} for name, curve in row.curves.items()},
    }
    if row.note:
        data["note"] = lists.notes.setdefault(_text(row.note), len(lists.notes))
    return {key: value for key, value in data.items() if value not in ("", {})}


def _without_places(command: str) -> str:
    """Return a command without the options that name places of one machine."""
    words = iter(shlex.split(command))
    return shlex.join(word for word in words if word not in OPTIONS_OF_PLACES or next(words, None) is None)


def _value_data(value: Value, trials: int) -> list[Plain]:
    """Return a value as a list without redundant entries at its end; without a number [] or the reason."""
    estimate = value.estimate
    numbers = [_rounded(number) for number in (estimate.value, estimate.low, estimate.high)]
    data: list[Plain] = [*numbers, estimate.n, value.over, estimate.trials]
    ends: list[Plain] = [None, None, None, trials if value.has_number else 0, "", estimate.n]
    while data and data[-1] == ends[len(data) - 1]:
        data.pop()
    return data


def _row(data: Mapping[str, Any], file: Mapping[str, Any]) -> Measured:
    trials = data["n"]
    return Measured(
        where={**data.get("where", {}), **file["everywhere"]},
        column=Column(*file["who"][data["who"]]),
        trials=trials,
        values={name: _value(value, trials) for name, value in data.get("values", {}).items()},
        outcomes=data.get("outcomes", {}),
        cell=data.get("cell", ""),
        note=file["notes"][data["note"]] if "note" in data else "",
        curves={name: _curve(curve) for name, curve in data.get("curves", {}).items()},
        part=data.get("part", ""),
        settings=data["settings"] or "",
        earlier=data.get("earlier", ""),
        source=file["sources"][data["source"]],
    )


def _value(data: Sequence[float | str | None], trials: int) -> Value:
    mean, low, high = (math.nan if number is None else float(number) for number in [*data[:3], None, None, None][:3])
    n = int(cast(int, data[3])) if len(data) > 3 else trials if math.isfinite(mean) else 0
    over = str(data[4]) if len(data) > 4 else ""
    return Value(Estimate(mean, low, high, n, int(cast(int, data[5])) if len(data) > 5 else n), over)


def _curve(data: CurveData) -> Curve:
    return Curve(tuple(data["x"]), tuple(tuple(client) for client in data["y"]))


def _column_table(data: Mapping[str, Any]) -> ColumnTable:
    rows = tuple((name, tuple((share, interval) for share, interval in shares)) for name, shares in data["rows"])
    return ColumnTable(data["part"], tuple(data["heads"]), rows)


def _settings_data(recorded: Recorded) -> dict[str, object]:
    """Return the settings by hash: the first of a part in full, the others as changes to it."""
    first: dict[str, str] = {}
    data: dict[str, object] = {}
    for row in recorded.rows:
        if not row.settings or row.settings in data:
            continue
        model = first.setdefault(row.part, row.settings)
        settings = recorded.settings[row.settings]
        like = recorded.settings[model]
        data[row.settings] = settings if model == row.settings else {"like": model, "but": changes(like, settings)}
    return data


def changes(old: Settings, new: Settings) -> dict[str, object]:
    """Return the changes that turn old settings into new ones, by key: [value] replaces, [] removes, a mapping recurses.

    >>> changes({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4}})
    {'b': {'c': [4], 'd': []}}
    """
    changed: dict[str, object] = {key: [] for key in old if key not in new}
    for key, value in new.items():
        if key in old and old[key] == value:
            continue
        before = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            changed[key] = changes(before, value)
        else:
            changed[key] = [value]
    return dict(sorted(changed.items()))


def changed_settings(old: Settings, changed: Mapping[str, object]) -> dict[str, object]:
    """Return settings with the changes of `changes` applied."""
    settings = dict(old)
    for key, change in changed.items():
        if isinstance(change, Mapping):
            settings[key] = changed_settings(cast(Settings, settings[key]), change)
        elif change:
            settings[key] = cast(Sequence[object], change)[0]
        else:
            del settings[key]
    return settings


def _all_settings(data: Mapping[str, Settings]) -> dict[str, Settings]:
    settings: dict[str, Settings] = {}
    for digest, each in data.items():
        alike = isinstance(each, Mapping) and set(each) == {"like", "but"}
        settings[digest] = (
            changed_settings(settings[cast(str, each["like"])], cast(Settings, each["but"])) if alike else each
        )
    return settings


def _block(key: str, lines: list[str], brackets: str) -> str:
    return f"{json.dumps(key)}: {brackets[0]}" + ("\n" if lines else "") + ",\n".join(lines) + brackets[1]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
