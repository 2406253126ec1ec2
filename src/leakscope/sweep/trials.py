"""The trials of a scenario: every cell, seed and client once, each with the id of all that determines it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from leakscope.core.record import Cell, Plain
from leakscope.scenario.identity import cell_id, trial_id
from leakscope.sweep.world import fingerprint, items_of

SEED_BITS = 24


@dataclass(frozen=True, slots=True)
class Trial:
    """One client attacked once; `cell` is the place of its cell in the sweep's list."""

    id: str
    cell: int
    number: int
    seed: int
    items: tuple[int, ...]


def unique_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without repetition: equal settings are one cell, under the axes it was first given."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.id, cell)
    return list(found.values())


def trials_of(cells: list[Cell]) -> list[Trial]:
    """Return every trial of every cell, by cell, seed and number."""
    trials: list[Trial] = []
    items: dict[str, list[tuple[int, ...]]] = {}
    for place, cell in enumerate(cells):
        settings: Any = cell.settings
        data = settings["data"]
        print_ = fingerprint(data["name"], data["part"])
        key = repr(sorted(data.items()))
        known = items.setdefault(key, [])
        known += [items_of(settings, number) for number in range(len(known), settings["trials"])]
        for seed in settings["seeds"]:
            for number in range(settings["trials"]):
                own = (seed << SEED_BITS) + number
                trials.append(Trial(trial_id(cell.id, print_, known[number], own), place, number, own, known[number]))
    return trials


def baseline_cells(cells: list[Cell]) -> list[Cell]:
    """Return the cells of the null baselines: one for each way the sweep's cells choose data, and each baseline asked for."""
    found: dict[str, Cell] = {}
    for cell in cells:
        settings: Any = cell.settings
        for name in settings["baselines"]:
            made = _baseline(settings, name, _data_axes(cell))
            known = found.get(made.id)
            if known is None or _trials(known) < _trials(made):
                found[made.id] = made
    return list(found.values())


def _baseline(settings: Mapping[str, Any], name: str, axes: Mapping[str, Plain]) -> Cell:
    own = {
        "name": settings["name"],
        "data": settings["data"],
        "attack": {"name": name},
        "trials": settings["trials"],
        "seeds": settings["seeds"][:1],
    }
    cell = Cell(id=cell_id(own), settings=own, axes={"attack": name, **axes}, baseline=True)
    return replace(cell, id=f"b{cell.id[1:]}")


def _trials(cell: Cell) -> int:
    settings: Any = cell.settings
    return int(settings["trials"])


def _data_axes(cell: Cell) -> dict[str, Plain]:
    return {name: value for name, value in cell.axes.items() if name.split(".")[0] == "data"}
