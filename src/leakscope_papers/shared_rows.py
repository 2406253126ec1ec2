"""Rows of a part that uses another item's run (`same_as`): read from the recorded rows of that item, not recorded twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from leakscope_papers.comparing import Measured
from leakscope_papers.items import Item, Part, home_of
from leakscope_papers.naming import places_of
from leakscope_papers.planned import settings_of_cells
from leakscope_papers.records import Recorded, place_key, place_of, read_recorded, recorded_file, write_recorded
from leakscope_papers.scales import parts_at


def recorded_rows(item: Item, scale: str, out: Path | None = None) -> Recorded | None:
    """Return the recorded rows of an item at a scale, those of shared parts from their owners; None if there are none.

    A shared row that is in the item's own file too is taken from the owner if only that one has its settings.
    """
    path = recorded_file(item.name, scale, out)
    own = read_recorded(path, item.name, scale) if path.is_file() else None
    recorded = own or Recorded(item.name, scale, (), {})
    for rows, theirs in _shared(item, scale, out):
        complete = {place_of(row) for row in recorded.rows if row.settings}
        known = {place_of(row) for row in recorded.rows}
        better = [row for row in rows if place_of(row) not in (complete if row.settings else known)]
        places = set(map(place_of, better))
        kept = tuple(row for row in recorded.rows if place_of(row) not in places)
        settings = {row.settings: theirs.settings[row.settings] for row in better if row.settings}
        recorded = replace(recorded, rows=(*kept, *better), settings={**recorded.settings, **settings})
    return recorded if own or recorded.rows else None


def drop_copies(item: Item, scale: str, out: Path | None = None) -> int:
    """Remove from the file of an item the rows that `recorded_rows` has without it; return their number."""
    path = recorded_file(item.name, scale, out)
    if not path.is_file():
        return 0
    recorded = read_recorded(path, item.name, scale)
    shared = {place_of(row): row for rows, _ in _shared(item, scale, out) for row in rows}
    kept = tuple(row for row in recorded.rows if not _is_copy(row, shared.get(place_of(row))))
    if not kept and not recorded.columns and not recorded.reported and recorded.rows:
        path.unlink()
    elif len(kept) < len(recorded.rows):
        write_recorded(replace(recorded, rows=kept), path)
    return len(recorded.rows) - len(kept)


def _is_copy(row: Measured, of: Measured | None) -> bool:
    """Return whether a row says nothing that another does not say."""
    if of is None or (row.trials, row.settings, row.earlier, row.curves) != (
        of.trials,
        of.settings,
        of.earlier,
        of.curves,
    ):
        return False
    return all(repr(value) == repr(of.values.get(name)) for name, value in row.values.items())  # nan equals nan


def _shared(item: Item, scale: str, out: Path | None) -> Iterator[tuple[list[Measured], Recorded]]:
    """Yield the rows of each shared part with the owner's file; with caps or traces an item needs the owner's run itself."""
    for part in parts_at(item, scale):
        owner = home_of(item, part)[0]
        path = recorded_file(owner.name, scale, out)
        if part.same_as and item.caps is None and not item.traces and path.is_file():
            theirs = read_recorded(path, owner.name, scale)
            yield list(_placed(item, part, scale, theirs)), theirs


def _placed(item: Item, part: Part, scale: str, theirs: Recorded) -> Iterator[Measured]:
    """Yield the owner's rows at the places of an item: both places of a planned cell come from the same settings."""
    owner, home = home_of(item, part)
    rows: dict[object, list[Measured]] = {}
    for row in theirs.rows:
        rows.setdefault(place_of(row), []).append(row)
    for settings in settings_of_cells(owner, home, scale):
        measured = [rows.get(place_key(column, where)) for where, column in places_of(owner, home, settings)]
        for row in next(filter(None, measured), ()):
            note = part.note if row.note == home.note else row.note
            for where, column in places_of(item, part, settings):
                yield replace(row, where=where, column=column, part=part.name, note=note)
