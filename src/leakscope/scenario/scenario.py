"""A checked scenario: the settings all cells share, the axes, and the cells they span."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from leakscope.core.record import Cell, Plain
from leakscope.scenario.attackers import (
    BOTH,
    KNOWS_DEFENCE,
    knowing_matters,
    names_attacker,
    relevant_axes,
    with_unknown_defences,
)
from leakscope.scenario.axes import MOST_CELLS, Axis, read_axes, set_path, value_at
from leakscope.scenario.cell import read_settings
from leakscope.scenario.identity import cell_id, pinned
from leakscope.scenario.labels import label_points
from leakscope.scenario.problems import Path, Problem, ScenarioError
from leakscope.scenario.reader import UserFile, parse_user_file, read_user_file, user_file_of
from leakscope.scenario.schema import MOST_TRIALS, OUTSIDE, check_cell, default_of, idle_defences
from leakscope.scenario.text import Text

KIND = "a scenario"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario. `bases` holds the settings of the first cell of each attack; the axes say what differs."""

    name: str
    axes: tuple[Axis, ...]
    bases: tuple[dict[str, Any], ...]
    text: str
    source: str = ""
    lines: Text = field(default_factory=Text)
    both: bool = False  # the file names no attacker: run the uninformed one, and the informed one where it differs

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, in the order of the axes."""
        others = [axis for axis in self.axes if axis.name != "attack"]
        varied = [axis for axis in self.axes if axis.name == "attack"]
        labels = varied[0].labels if varied else (None,)
        for base, label in zip(self.bases, labels, strict=True):
            for points in itertools.product(*(range(len(axis)) for axis in others)):
                settings = _copy(base)
                axes: dict[str, Plain] = {"attack": label} if varied else {}
                for axis, point in zip(others, points, strict=True):
                    axes[axis.name] = axis.labels[point]
                    for path, value in zip(axis.paths, axis.rows[point], strict=True):
                        set_path(settings, path, value)
                if self.both and value_at(settings, KNOWS_DEFENCE) and not knowing_matters(read_settings(settings)):
                    continue
                settings = pinned(settings)
                plain = {"name": self.name, **with_unknown_defences(settings)}
                yield Cell(id=cell_id(settings), settings=plain, axes=axes)

    @property
    def cell_count(self) -> int:
        """Return the number of cells before equal ones are merged."""
        return math.prod(len(axis) for axis in self.axes)

    def error(self, problems: list[Problem]) -> ScenarioError:
        """Return problems found later (a model that does not fit the data) as an error with their lines."""
        return ScenarioError([_located(p, self.lines, self.axes) for p in problems], self.source)


def read_scenario(path: FilePath | str) -> Scenario:
    """Return the scenario in a YAML file, or raise all its errors."""
    return _scenario(read_user_file(path, KIND))


def scenario_from_text(text: str, source: str = "") -> Scenario:
    """Return the scenario of a YAML text; `source` names it in messages."""
    return _scenario(parse_user_file(text, source, KIND))


def scenario_of(data: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a plain mapping with the fields of a file."""
    return _scenario(user_file_of(data, KIND))


def _scenario(file: UserFile) -> Scenario:
    data, read, source = file.data, file.lines, file.source
    axes, problems = read_axes(data)
    name = data.get("name", "")
    if not isinstance(name, str):
        problems.append(Problem(("name",), f"must be text, got {name!r:.40}"))
    problems += _too_many(axes)
    if _too_many(axes):
        raise ScenarioError([_located(p, read, ()) for p in problems], source)
    raw = {k: v for k, v in data.items() if k not in OUTSIDE}
    bases, resolved, more = _resolve(raw, axes, sound=not problems)
    problems += more
    if problems:
        unique = {(p.path, p.message): p for p in problems}
        raise ScenarioError([_located(p, read, tuple(axes)) for p in unique.values()], source)
    scenario = Scenario(str(name), tuple(resolved), tuple(bases), file.text, source, read)
    scenario = scenario if names_attacker(data, axes) else _against_both(scenario)
    total = _total(scenario)
    if total > MOST_TRIALS:
        raise scenario.error(
            [Problem(("trials",), f"the sweep has {total:,} trials; at most {MOST_TRIALS:,} are run at once")]
        )
    return scenario


def _too_many(axes: Sequence[Axis]) -> list[Problem]:
    number = math.prod(len(axis) for axis in axes)
    if number <= MOST_CELLS:
        return []
    return [Problem(("grid",), f"the axes span {number:,} cells; at most {MOST_CELLS:,} are run at once")]


def _against_both(scenario: Scenario) -> Scenario:
    """Return the scenario with informed and uninformed attackers, if they differ in any cell."""
    few = replace(scenario, axes=relevant_axes(scenario.axes))
    if not any(knowing_matters(read_settings(cell.settings)) for cell in few.cells()):
        return scenario
    doubled = replace(scenario, axes=(*scenario.axes, BOTH), both=True)
    problems = _too_many(doubled.axes)
    if problems:
        raise doubled.error(problems)
    return doubled


def _total(scenario: Scenario) -> int:
    base = scenario.bases[0]
    return int(scenario.cell_count * base["trials"] * len(base["seeds"]))


def _resolve(
    raw: dict[str, Any], axes: list[Axis], *, sound: bool
) -> tuple[list[dict[str, Any]], list[Axis], list[Problem]]:
    """Return the settings of the first cell of each attack, the axes with checked values, and all problems.

    Each axis value is checked with the other axes at their first point; axes set different fields, so this covers all cells.
    Values of axes that are not `sound` (two set the same field) are checked but not read back.
    """
    problems: list[Problem] = []
    others = [axis for axis in axes if axis.name != "attack"]
    attacks = next((axis for axis in axes if axis.name == "attack"), None)
    bases: list[dict[str, Any]] = []
    checked: dict[str, list[tuple[Any, ...]]] = {axis.name: [] for axis in others}
    for number in range(len(attacks) if attacks else 1):
        start = copy.deepcopy(raw)
        if attacks:
            start["attack"] = copy.deepcopy(attacks.rows[number][0])
        base = _point(start, others, {}, number, problems)
        bases.append(base or {})
        for axis in others:
            for point in range(len(axis)):
                settings = base if point == 0 else _point(start, others, {axis.name: point}, number, problems)
                if sound and number == 0 and settings is not None and not problems:
                    checked[axis.name].append(tuple(value_at(settings, path) for path in axis.paths))
    if problems or not sound:
        return bases, axes, problems
    resolved = [
        replace(axis, rows=tuple(checked[axis.name]), labels=_axis_labels(checked[axis.name])) for axis in others
    ]
    if attacks:
        labels = label_points([base["attack"] for base in bases])
        resolved.insert(0, replace(attacks, labels=labels))
    return bases, resolved, problems


def _axis_labels(rows: list[tuple[Any, ...]]) -> tuple[Plain, ...]:
    return label_points([row[0] if len(row) == 1 else list(row) for row in rows])


def _point(
    start: dict[str, Any], axes: list[Axis], chosen: dict[str, int], attack: int, problems: list[Problem]
) -> dict[str, Any] | None:
    """Return the checked settings with each axis at its chosen point (by default its first)."""
    raw = copy.deepcopy(start)
    places: dict[Path, Path] = {("attack",): ("attacks", attack)}
    for axis in axes:
        point = chosen.get(axis.name, 0)
        for path, value, place in zip(axis.paths, axis.rows[point], axis.places[point], strict=True):
            if len(path) > 1 and path[0] not in raw:
                raw |= default_of(str(path[0]))
            refused = set_path(raw, path, value)
            if refused:
                problems.append(Problem(place[:-1], refused))
                continue
            places[path] = place
    settings, wrong = check_cell(raw)
    problems += [_moved(problem, places) for problem in (*wrong, *idle_defences(raw))]
    return settings


def _moved(problem: Problem, places: Mapping[Path, Path]) -> Problem:
    """Return a problem at the place in the file that its field came from."""
    for length in range(len(problem.path), 0, -1):
        place = places.get(problem.path[:length])
        if place is not None:
            return replace(problem, path=(*place, *problem.path[length:]))
    return problem


def _located(problem: Problem, read: Text, axes: tuple[Axis, ...]) -> Problem:
    path = problem.path
    if path and path[0] == "attacks" and not any(axis.name == "attack" for axis in axes):
        path = ("attack", *path[2:]) if len(path) > 1 else path
    return replace(problem, path=path, line=problem.line or read.line(path))


def _copy(value: Any) -> Any:
    """Return a copy of plain data; several times as fast as copy.deepcopy."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
