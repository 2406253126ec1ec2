"""The results of a sweep as one sheet: its cells, and a row for every sample of every trial. No HTML, no torch.

`sheet_of(run)` reads a stored run. The page and `leakscope show` both count from a sheet, so they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from leakscope.core.record import Cell, Plain
from leakscope.report.implied_knowledge import TOLD, with_known_heads

Columns = Mapping[str, npt.NDArray[Any]]
Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

ATTACK = "attack"
LEARNED = "learned."  # before the name of a number that an attack found beside the pictures


class Stored(Protocol):
    """What a sheet needs of a stored run (`leakscope.store.Run`)."""

    def cells(self, *, current: bool = True) -> list[Cell]:
        """Return the cells of the scenario, or all that `columns()['cell']` points to."""

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return one row for every sample of every trial of the scenario's cells, those of a trial together."""


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Rows as columns. `cell` is a row's place in `cells`, `trial` a code for its trial, `first` one row of each trial.

    `outcome` are codes into `outcomes`. `columns` are the stored ones, for what is shown as it is.
    """

    cells: tuple[Cell, ...]
    columns: Columns
    cell: Codes
    trial: Codes
    first: Flags
    outcome: Codes
    outcomes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def learned(self) -> dict[str, str]:
        """Return the numbers that attacks found beside the pictures, by name, each with its column."""
        return {name.removeprefix(LEARNED): name for name in self.columns if name.startswith(LEARNED)}

    def floats(self, name: str) -> Floats:
        """Return a column as numbers."""
        return np.asarray(self.columns[name], dtype=np.float64)

    def flags(self, name: str) -> Flags:
        """Return a column as yes or no; what is not known is no."""
        return np.asarray(self.columns[name] == 1, dtype=np.bool_)

    @property
    def trials(self) -> int:
        """Return how many trials there are, those of baselines not counted."""
        return int((self.first & ~self.baseline).sum())

    @property
    def baseline(self) -> Flags:
        """Return which rows belong to a baseline."""
        return np.array([cell.baseline for cell in self.cells], dtype=np.bool_)[self.cell]

    @property
    def samples(self) -> Flags:
        """Return which rows are a sample; a trial without one has a row with sample -1."""
        return np.asarray(self.columns["sample"] >= 0, dtype=np.bool_)


def sheet_of(run: Stored) -> Sheet:
    """Return the sheet of a stored run: the trials of the cells that its scenario names now."""
    cells, stored, columns = with_known_heads(run.cells()), run.cells(current=False), run.columns()
    place = {cell.id: i for i, cell in enumerate(cells)}
    places = np.array([place.get(cell.id, -1) for cell in stored], dtype=np.int64)
    inside = columns["cell"] < len(stored)  # a cell may land between two reads of a run that is being written
    columns = {name: values[inside] for name, values in columns.items()}
    return make_sheet(cells, columns | {"cell": places[columns["cell"]] if len(stored) else columns["cell"]})


def make_sheet(cells: Sequence[Cell], columns: Columns) -> Sheet:
    """Return the sheet of these cells and columns, `columns["cell"]` being places in `cells`; rows at -1 are left out."""
    kept = columns["cell"] >= 0
    columns = {name: values[kept] for name, values in columns.items()}
    trial = columns["trial"]
    first = np.ones(len(trial), dtype=np.bool_)
    first[1:] = trial[1:] != trial[:-1]
    names, outcome = np.unique(columns["outcome"].astype(str), return_inverse=True)
    return Sheet(
        cells=tuple(cells),
        columns=columns,
        cell=columns["cell"].astype(np.int64),
        trial=np.cumsum(first) - 1,
        first=first,
        outcome=outcome.astype(np.int64).reshape(-1),
        outcomes=tuple(str(name) for name in names),
    )


def clusters(sheet: Sheet, group: Codes) -> Codes:
    """Return for every row the code of its client within its group.

    Cells that differ in the attack or a defence attack the same clients: pooled in one row of a table, those are no new clients.
    """
    columns = sheet.columns
    if not {"seed", "number"} <= set(columns) or not len(group):
        return sheet.trial
    seeds = np.unique(columns["seed"], return_inverse=True)[1].reshape(-1).astype(np.int64)
    numbers = columns["number"].astype(np.int64)
    code = (group * (int(seeds.max()) + 1) + seeds) * (int(numbers.max()) + 1) + numbers
    own: Codes = np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return own


def name_of(cell: Cell) -> str:
    """Return the name of a cell's attack, or in words that of its baseline.

    >>> name_of(Cell(id="a", settings={"attack": {"name": "class_mean"}}, baseline=True))
    'class mean'
    """
    attack = cell.settings.get(ATTACK)
    knowledge = cell.settings.get("knowledge")
    said = knowledge.get("defence") if isinstance(knowledge, Mapping) else None
    knows = cell.axes.get(TOLD, said) is True  # another attacker: never pooled with, or taken for, the first
    told = " (told of the defence)" if knows else ""
    given = (attack.get("label") or attack.get("name")) if isinstance(attack, Mapping) else attack
    name = say(cell.axes[ATTACK]) if ATTACK in cell.axes else str(given or "attack")
    return name.replace("_", " ") if cell.baseline else name + told


def axes_of(cells: Sequence[Cell]) -> dict[str, tuple[Plain, ...]]:
    """Return the axes in order of first appearance, each with its values: numbers by size, others as they come.

    >>> cells = [Cell(id=str(i), settings={}, axes={"sigma": s, "attack": a}) for i, (s, a) in
    ...          enumerate([(0.1, "cpl"), (0, "cpl"), (0.1, "dlg")])]
    >>> axes_of(cells)
    {'sigma': (0, 0.1), 'attack': ('cpl', 'dlg')}
    """
    found: dict[str, dict[str, Plain]] = {}
    for cell in cells:
        for name, value in cell.axes.items():
            found.setdefault(name, {}).setdefault(say(value), value)
    return {
        name: tuple(sorted(values.values(), key=_size)) if is_numeric(values.values()) else tuple(values.values())
        for name, values in found.items()
    }


def families(cells: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells that vary on the same axes, family by family, baselines in none."""
    found: dict[frozenset[str], list[Cell]] = {}
    for cell in cells:
        if not cell.baseline:
            found.setdefault(frozenset(cell.axes), []).append(cell)
    yield from (tuple(family) for family in found.values())


def is_numeric(values: Sequence[Plain] | Any) -> bool:
    """Return whether all values are numbers (truth values are not)."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def say(value: Plain) -> str:
    """Return a value of an axis in words, two different ones never in the same words.

    >>> say(1e-4), say(32), say(True), say(None), say("cpl"), say(0.12345678)
    ('0.0001', '32', 'yes', 'none', 'cpl', '0.12345678')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _size(value: Plain) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
