"""A cell of ours in the words of the paper: data, attack, start, defence ... as the published files name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakscope.core.record import Plain
from leakscope.scenario.axes import parse_path
from leakscope_papers.items import Conditions, Item, Part, Reading, Rule, Where


def setting_at(settings: Any, path: str) -> Any:
    """Return the value at a path of a cell's settings, None where there is none; a key of that very name comes first.

    >>> setting_at({"defences": [{"sigma": 0.1}]}, "defences.0.sigma"), setting_at({}, "defences.0.sigma")
    (0.1, None)
    """
    if isinstance(settings, Mapping) and path in settings:
        return settings[path]
    here = settings
    for part in parse_path(path):
        inside = isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        if not inside and not (isinstance(here, Mapping) and part in here):
            return None
        here = here[part]
    return here


def meets(values: Mapping[str, Any], conditions: Conditions) -> bool:
    """Return whether every condition holds: the value is the one given, or one of those given."""
    return all(_is_one_of(values.get(name), wanted) for name, wanted in conditions.items())


def belongs(settings: Mapping[str, Any], *readings: Reading) -> bool:
    """Return whether a cell with these settings is one of those that the readings speak of."""
    return all(
        _is_one_of(setting_at(settings, path), wanted) for reading in readings for path, wanted in reading.only.items()
    )


def name_cell(item: Item, part: Part, reading: Reading, settings: Mapping[str, Any]) -> dict[str, Plain] | None:
    """Return where a cell stands in the paper's words; None if a strict rule puts it outside the item."""
    rules: dict[str, Rule | Plain] = {**item.where, **part.where, **reading.where}
    order = dict.fromkeys([*part.where, *item.where, *reading.where])  # what the part is about comes first
    return _named({axis: rules[axis] for axis in order}, settings)


def _named(rules: Where, settings: Mapping[str, Any]) -> dict[str, Plain] | None:
    where: dict[str, Plain] = {}
    for axis, rule in rules.items():
        if not isinstance(rule, Rule):
            where[axis] = rule
            continue
        found = setting_at(settings, rule.path)
        word = next((word for word, ours in rule.words.items() if _is_one_of(found, ours)), None)
        if word is None and rule.strict:
            return None
        if rule.times != 1 and isinstance(found, int | float):
            found = found * rule.times
        value = word if word is not None else rule.otherwise if rule.otherwise is not None else found
        if value is not None:
            where[axis] = value
    return where


def _is_one_of(value: Any, wanted: Plain | list[Plain]) -> bool:
    return any(_same(value, each) for each in (wanted if isinstance(wanted, list) else [wanted]))


def _same(value: Any, wanted: Plain) -> bool:
    """Return whether two values are the same; True is no 1, numbers agree up to rounding."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return abs(value - wanted) <= 1e-9 * max(abs(value), abs(wanted))
    return bool(value == wanted)
