"""Which cells of a run are one line of a characteristic, and what the line is called."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.scenario.attackers import made_for_heads
from leakscope.scenario.cell import CellSettings, read_settings
from leakscope.store import Run

DEFENDED = ("defences", "client.on_model", "client.on_data")
KNOWS_DEFENCE = "knowledge.defence"


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of a run that differ in one strength alone, by strength; `values` are the defence without it."""

    run: Run
    along: str
    cells: tuple[tuple[float, Cell], ...]

    @property
    def settings(self) -> CellSettings:
        """Return the settings of the first cell."""
        return read_settings(self.cells[0][1].settings)

    @property
    def values(self) -> list[Any]:
        """Return the pieces of the defence, without the strength that the line goes along."""
        plain = _without(self.cells[0][1].settings, self.along)
        client = plain["client"]
        heads = [] if client["on_model"] is None else [{"name": "spn", **client["on_model"]}]
        policies = [] if client["on_data"] is None else [{"name": "policy", **client["on_data"]}]
        return [*plain["defences"], *heads, *policies]


def lines_of(run: Run, along: str | None = None) -> list[Line]:
    """Return the lines of a run along a strength: the one named, or the only one there is."""
    cells = [cell for cell in run.cells() if not cell.baseline]
    strength = _along(run, cells, along)
    groups: dict[str, list[tuple[float, Cell]]] = {}
    for cell in cells:
        key = json.dumps(_without(cell.settings, strength), sort_keys=True)
        groups.setdefault(key, []).append((float(str(cell.axes[strength])), cell))
    return [Line(run, strength, tuple(sorted(group, key=lambda pair: pair[0]))) for group in groups.values()]


def _along(run: Run, cells: Sequence[Cell], named: str | None) -> str:
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    able = [
        axis for axis in axes if axis.startswith(DEFENDED) and all(_is_number(cell.axes.get(axis)) for cell in cells)
    ]
    if named is None and len(able) == 1:
        return able[0]
    if named in able:
        return str(named)
    message = f"those of this run: {', '.join(able) or 'none'}"
    if any(" + " in axis and any(field.startswith(DEFENDED) for field in axis.split(" + ")) for axis in axes):
        message += "; a zip changes other fields with a strength, and cannot be used"
    wanted = "--along names one" if named is None else f"--along {named!r} is not one"
    raise InputError(
        f"{run.directory}: a characteristic goes along one strength of a defence, a number in every cell "
        f"(grid: {{defences.0.sigma: [...]}}); {wanted}; {message}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the settings without the value at a path, nor titles."""
    plain = copy.deepcopy(dict(settings))
    plain.pop("name", None)
    *way, last = path.split(".")
    place: Any = plain
    for word in way:
        place = place[int(word)] if isinstance(place, list) else place[word]
    place.pop(last)
    return plain


def name_lines(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return (defence, attacker) of every line: names, told apart by the settings that differ, at last by their run."""
    values = [line.values for line in lines]
    named = [(defence_name(value, values), _attacker(line)) for line, value in zip(lines, values, strict=True)]
    return [
        name if named.count(name) == 1 else (name[0], f"{name[1]}, {line.run.directory.name}")
        for name, line in zip(named, lines, strict=True)
    ]


def defence_name(pieces: Sequence[Mapping[str, Any]], among: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Return the names of a defence's pieces, each with the settings in which other defences of these names differ."""
    names = [piece["name"] for piece in pieces]
    alike = [other for other in among if [piece["name"] for piece in other] == names]
    words = []
    for place, piece in enumerate(pieces):
        differing = [key for key in piece if any(other[place].get(key) != piece[key] for other in alike)]
        words.append(" ".join([str(piece["name"]), *(f"{key}={piece[key]}" for key in differing)]))
    return " + ".join(words) or "no defence"


def _attacker(line: Line) -> str:
    settings, axes = line.settings, line.cells[0][1].axes
    attack = str(settings.recipe.settings.get("label") or settings.recipe.name)
    if settings.knowledge.defence:
        knows = "knows the defence"
    elif settings.client.on_model is not None and made_for_heads(settings.recipe.name):
        knows = "knows that there is a head"
    else:
        knows = "does not know"
    others = [f"{axis} {value}" for axis, value in axes.items() if axis not in ("attack", KNOWS_DEFENCE, line.along)]
    return ", ".join([attack, knows, *others])
