"""What an item plans at a scale: its cells and rows with places and settings, and the numbers of trials or rows."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from leakscope.core.record import Plain
from leakscope_papers.files import file_dataclass
from leakscope_papers.items import Item, Part, find_part, home_of, item_files, read_item
from leakscope_papers.naming import Column, places_of
from leakscope_papers.programs.settings import read_settings
from leakscope_papers.scales import parts_at, rows_at, scenario_at, settings_at

Settings: TypeAlias = Mapping[str, object]
NOT_COMPARED = ("name", "trials", "seeds", "baselines")  # a row states its own n
MOST_DIFFERENCES = 4  # listed by `what_differs`
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A planned cell of a scenario or row of a program: its part, place and column."""

    part: str
    where: Mapping[str, Plain]
    column: Column


def settings_of_cells(item: Item, part: Part, scale: str) -> list[Settings]:
    """Return the settings of every cell of a part (for a program's row: its place and the program's settings), without running it."""
    if home_of(item, part)[1].program:
        program = settings_at(item, part, scale)
        return [{"settings": program, **place} for place in rows_at(item, part, scale).values()]
    return [cell.settings for cell in scenario_at(item, part, scale).cells() if not cell.baseline]


def planned_cells(item: Item, scale: str) -> tuple[PlannedCell, ...]:
    """Return every cell that an item plans at a scale, for each reading and attacker it belongs to."""
    return _planned_by_name(item.name, scale) if _is_on_file(item) else _planned(item, scale)


@functools.cache
def _planned_by_name(name: str, scale: str) -> tuple[PlannedCell, ...]:
    return _planned(read_item(name), scale)


def _is_on_file(item: Item) -> bool:
    return item.name in item_files() and read_item(item.name) is item


def _planned(item: Item, scale: str) -> tuple[PlannedCell, ...]:
    caps = [{item.caps.axis: cap} for cap in item.caps.at] if item.caps else [{}]
    return tuple(
        PlannedCell(part.name, {**where, **cap}, column)
        for part in parts_at(item, scale)
        for settings in settings_of_cells(item, part, scale)
        for where, column in places_of(item, part, settings)
        for cap in caps
    )


def settings_hash(settings: Settings) -> str:
    """Return the hash of settings without titles and the numbers of trials, seeds and baselines.

    >>> settings_hash({"rate": 0.1, "trials": 20}) == settings_hash({"rate": 0.1, "trials": 100})
    True
    """
    text = json.dumps(compared_settings(settings), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compared_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that two measurements of the same cell must share, as JSON data."""
    plain: dict[str, object] = json.loads(
        json.dumps({key: value for key, value in settings.items() if key not in NOT_COMPARED})
    )
    attack = plain.get("attack")
    if isinstance(attack, dict):
        attack.pop("label", None)
    return plain


def present_hashes(item: Item, part: str, scale: str) -> dict[str, Settings]:
    """Return hash -> settings of a part's cells at a scale, on its data and on a user's own copy; {} if the scale leaves it out."""
    chosen = next((each for each in parts_at(item, scale) if each.name == part), None)
    if chosen is None:
        return {}
    if home_of(item, chosen)[1].program:
        every: list[Settings] = [settings_at(item, chosen, scale, own=own) for own in (False, True)]
    else:
        every = [cell.settings for own in (False, True) for cell in scenario_at(item, chosen, scale, own=own).cells()]
    return {settings_hash(settings): compared_settings(settings) for settings in every}


def what_differs(stored: Settings, present: Mapping[str, Settings]) -> str:
    """Return how stored settings differ from the nearest present ones, as text.

    >>> what_differs({"data": {"name": "mnist", "size": 1000}}, {"a": {"data": {"name": "mnist", "size": 5000}}})
    'data.size 1000, now 5000'
    """
    flat = dict(_flat(compared_settings(stored)))
    differences = [_differences(flat, dict(_flat(other))) for other in present.values()]
    if not differences:
        return "the item no longer plans this part at this scale"
    nearest = min(differences, key=len)
    words = [f"{path} {_say(was)}, now {_say(now)}" for path, (was, now) in sorted(nearest.items())]
    more = [f"{len(words) - MOST_DIFFERENCES} more"] if len(words) > MOST_DIFFERENCES else []
    return "; ".join(words[:MOST_DIFFERENCES] + more)


def _differences(stored: Mapping[str, object], present: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    pairs = {path: (stored.get(path, _ABSENT), present.get(path, _ABSENT)) for path in {**stored, **present}}
    return {path: (was, now) for path, (was, now) in pairs.items() if was is _ABSENT or was != now}


def _say(value: object) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def wanted(item: Item, part: Part, scale: str, counted: Callable[[Settings], bool]) -> int:
    """Return the number of trials (or rows) of a part at a scale in the `counted` cells, without baselines."""
    if home_of(item, part)[1].program:
        return len(rows_at(item, part, scale))
    cells = {cell.id: cell.settings for cell in scenario_at(item, part, scale).cells() if not cell.baseline}
    return sum(trials_of(each) for each in cells.values() if counted(each))


def trials_a_cell(item: Item, part: str, scale: str) -> int:
    """Return the trials of each cell of a part at a scale; 0 for a program, whose rows are not of trials."""
    owner, home = home_of(item, find_part(item, part))
    return 0 if home.program else trials_of(settings_at(owner, home, scale))


@file_dataclass
class Repeats:
    """The repetitions of a cell: `trials` clients for each of the seeds."""

    trials: int
    seeds: tuple[int, ...] = (0,)


def trials_of(settings: Settings) -> int:
    """Return the number of trials of a cell."""
    repeats = read_settings(Repeats, settings)
    return repeats.trials * len(repeats.seeds)


def partly(done: int, whole: int, *, rows: bool = False) -> str:
    """Return how much is measured, as text; "" if all is.

    >>> partly(40, 60), partly(60, 60), partly(1, 1200, rows=True)
    ('40 of 60 trials', '', '1 of 1,200 rows')
    """
    return "" if done >= whole else f"{done:,} of {whole:,} {'rows' if rows else 'trials'}"
