"""The axes of a sweep: `attacks`, `grid` on any field, and `zip` for fields that go together."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.core.record import Plain
from leakscope.scenario.components import MOST_ITEMS
from leakscope.scenario.problems import Path, Problem, dotted

MOST_CELLS = 20_000


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: the fields it sets, a row of values and a label for each point, and its place in the file."""

    name: str
    paths: tuple[Path, ...]
    rows: tuple[tuple[Any, ...], ...]
    places: tuple[tuple[Path, ...], ...]
    labels: tuple[Plain, ...] = ()

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.rows)


def parse_path(text: str) -> Path:
    """Return the parts of a path such as `defences.0.sigma`.

    >>> parse_path("defences.0.sigma")
    ('defences', 0, 'sigma')
    """
    return tuple(int(part) if part.isdecimal() and len(part) < 9 else part for part in text.split("."))


def read_axes(data: Mapping[str, Any]) -> tuple[list[Axis], list[Problem]]:
    """Return the axes of a file in the order: attacks, grid, zip."""
    problems: list[Problem] = []
    axes = _attacks(data, problems)
    grid = data.get("grid", {})
    if isinstance(grid, Mapping):
        for text, values in grid.items():
            axes += _axis([(text, values)], [("grid", text)], problems)
    else:
        problems.append(Problem(("grid",), f"must map paths to lists of values, got {type(grid).__name__}"))
    zipped = data.get("zip", {})
    groups = zipped if isinstance(zipped, list) else [zipped] if zipped else []
    for number, group in enumerate(groups):
        place: Path = ("zip", number) if isinstance(zipped, list) else ("zip",)
        if isinstance(group, Mapping):
            axes += _axis(list(group.items()), [(*place, text) for text in group], problems)
        else:
            problems.append(Problem(place, f"must map paths to lists of equal length, got {type(group).__name__}"))
    if sum(len(axis.paths) for axis in axes) > MOST_ITEMS:
        return [], [*problems, Problem(("grid",), f"grid and zip vary at most {MOST_ITEMS} fields")]
    problems += _clashes(axes)
    return list({axis.name: axis for axis in axes}.values()), problems


def _attacks(data: Mapping[str, Any], problems: list[Problem]) -> list[Axis]:
    if "attacks" not in data:
        return []
    attacks = data["attacks"]
    if "attack" in data:
        problems.append(Problem(("attacks",), "give either attack or attacks, not both"))
    if not isinstance(attacks, list) or not 1 <= len(attacks) <= MOST_ITEMS:
        problems.append(Problem(("attacks",), f"must be a list of 1 to {MOST_ITEMS} attacks"))
        return []
    places = tuple((("attacks", i),) for i in range(len(attacks)))
    return [Axis("attack", (("attack",),), tuple((attack,) for attack in attacks), places)]


ONE_CELL = ": cells that differ in nothing else are one cell; give the most of them"
NO_AXES = {
    "attacks": ": write attack.<setting>, which varies it for every attack",
    "grid": "",
    "zip": "",
    "name": "",
    "baselines": "",
    "trials": ONE_CELL,
    "seeds": ONE_CELL,
}


def _axis(fields: list[tuple[str, Any]], places: list[Path], problems: list[Problem]) -> list[Axis]:
    """Return the axis of fields that vary together; [] after adding to `problems`."""
    before = len(problems)
    for (text, values), place in zip(fields, places, strict=True):
        if not isinstance(values, list) or not values:
            problems.append(Problem(place, "must be a list of at least one value"))
        first = text.split(".")[0]
        if first in NO_AXES:
            problems.append(Problem(place, f"{first} cannot be an axis{NO_AXES[first]}"))
    if len(problems) > before or not fields:
        return []
    lengths = {len(values) for _, values in fields}
    if len(lengths) > 1:
        lengths_text = ", ".join(f"{text}: {len(values)}" for text, values in fields)
        problems.append(Problem(places[0], f"the lists of one zip must be of equal length, got {lengths_text}"))
        return []
    number = lengths.pop()
    return [
        Axis(
            name=" + ".join(text for text, _ in fields),
            paths=tuple(parse_path(text) for text, _ in fields),
            rows=tuple(tuple(values[i] for _, values in fields) for i in range(number)),
            places=tuple(tuple((*place, i) for place in places) for i in range(number)),
        )
    ]


def _clashes(axes: Sequence[Axis]) -> list[Problem]:
    """Return a problem for every two axes that set the same field, or one inside the other's."""
    fields = [
        (path, place)
        for axis in axes
        if axis.name != "attack"
        for path, place in zip(axis.paths, axis.places[0], strict=True)
    ]
    problems = []
    for number, (path, place) in enumerate(fields):
        for other, _ in fields[:number]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                problems.append(Problem(place[:-1], f"sets the same field as {dotted(other)}"))
    varied = {path[0] for path, _ in fields if len(path) == 1}
    if "attack" in varied and any(axis.name == "attack" for axis in axes):
        problems.append(Problem(("grid", "attack"), "give the attacks in `attacks`, or vary attack in grid, not both"))
    return problems


def set_path(data: dict[str, Any], path: Path, value: Any) -> str | None:
    """Set a field of raw data in place; return the reason if that is impossible."""
    node: Any = data
    for number, part in enumerate(path[:-1]):
        inner = node[part] if _has(node, part) else None
        if isinstance(inner, str) and (isinstance(part, int) or number == 0):
            inner = {"name": inner}  # a component given by its name alone
        elif (
            inner is None and isinstance(node, dict) and isinstance(part, str) and not isinstance(path[number + 1], int)
        ):
            inner = {}
        if not isinstance(inner, dict | list):
            return f"there is no {dotted(path[: number + 1])} to set {dotted(path[number + 1 :])} of"
        node[part] = inner
        node = inner
    last = path[-1]
    if isinstance(node, list) and not _has(node, last):
        return f"{dotted(path[:-1])} has {len(node)} items; {last} is none of them"
    if isinstance(node, dict) and not isinstance(last, str):
        return f"{dotted(path[:-1])} is no list"
    node[last] = copy.deepcopy(value)
    return None


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(part, int) and part < len(node)
    return isinstance(node, dict) and part in node


def value_at(data: Any, path: Path) -> Any:
    """Return the value at a path of checked settings."""
    for part in path:
        data = data[part]
    return data
