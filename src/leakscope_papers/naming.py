"""Naming a cell in the words of the paper (data, attack, start, defence ...), as in the published files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from leakscope.core.record import Plain
from leakscope.scenario.axes import parse_path
from leakscope_papers.items import Conditions, Item, Part, Reading, Rule, Where


@dataclass(frozen=True, slots=True)
class Column:
    """A reading of the paper and an attacker; `judged` unless the paper did not run this attacker."""

    reading: str
    attacker: str
    judged: bool = field(default=True, compare=False)

    @property
    def title(self) -> str:
        """Return the title of the column."""
        return ", ".join(word for word in (self.reading, self.attacker) if word) or "measured"


def places_of(item: Item, part: Part, settings: Mapping[str, object]) -> Iterator[tuple[dict[str, Plain], Column]]:
    """Yield the place of a cell in the paper's words, for each reading and attacker it belongs to."""
    for reading in item.readings:
        if reading.parts and part.name not in reading.parts:
            continue
        where = name_cell(item, part, reading, settings) if belongs(settings, reading) else None
        attackers = item.attackers[:1] if part.joins else item.attackers
        for number, attacker in enumerate(attackers):
            if where is not None and (part.joins or belongs(settings, attacker)):
                yield where, Column(reading.label, attacker.label, number == 0)


def setting_at(settings: object, path: str) -> object:
    """Return the value at a path of a cell's settings, None if there is none; a key equal to the whole path has priority.

    >>> setting_at({"defences": [{"sigma": 0.1}]}, "defences.0.sigma"), setting_at({}, "defences.0.sigma")
    (0.1, None)
    """
    if isinstance(settings, Mapping) and path in settings:
        return settings[path]
    value = settings
    for part in parse_path(path):
        if isinstance(value, list | tuple):
            value = value[part] if isinstance(part, int) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def meets(values: Mapping[str, object], conditions: Conditions) -> bool:
    """Return whether the values meet every condition: equal to the given value, or to one of the given values."""
    return all(_is_one_of(values.get(name), wanted) for name, wanted in conditions.items())


def belongs(settings: Mapping[str, object], *readings: Reading) -> bool:
    """Return whether the readings cover a cell with these settings."""
    return all(
        _is_one_of(setting_at(settings, path), wanted) for reading in readings for path, wanted in reading.only.items()
    )


def name_cell(item: Item, part: Part, reading: Reading, settings: Mapping[str, object]) -> dict[str, Plain] | None:
    """Return the place of a cell in the paper's words; None if a strict rule puts it outside the item."""
    rules: dict[str, Rule | Plain] = {**item.where, **part.where, **reading.where}
    order = dict.fromkeys([*part.where, *item.where, *reading.where])  # the part's own axes come first
    return _named({axis: rules[axis] for axis in order}, settings)


def _named(rules: Where, settings: Mapping[str, object]) -> dict[str, Plain] | None:
    where: dict[str, Plain] = {}
    for axis, rule in rules.items():
        if not isinstance(rule, Rule):
            where[axis] = rule
            continue
        setting = setting_at(settings, rule.path)
        word = next((word for word, ours in rule.words.items() if _is_one_of(setting, ours)), None)
        if word is None and rule.strict:
            return None
        if rule.times != 1 and isinstance(setting, int | float):
            setting = setting * rule.times
        value = word if word is not None else rule.otherwise if rule.otherwise is not None else setting
        if value is not None:
            where[axis] = cast(Plain, value)
    return where


def _is_one_of(value: object, wanted: Plain | list[Plain]) -> bool:
    return any(_same(value, each) for each in wanted) if isinstance(wanted, list) else _same(value, wanted)


def _same(value: object, wanted: Plain) -> bool:
    """Return whether two values are equal; True is not 1, numbers are equal up to rounding."""
    if isinstance(value, str):
        return value == wanted
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return abs(value - wanted) <= 1e-9 * max(abs(value), abs(wanted))
    return bool(value == wanted)
