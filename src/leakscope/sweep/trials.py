"""The trials of a scenario: every cell, seed and client once, each with an id from all that determines it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leakscope.core.record import Cell
from leakscope.scenario.cell import read_baseline, read_settings
from leakscope.scenario.identity import cell_id, trial_id
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.objects import fingerprint, items_of

SEED_BITS = 24


@dataclass(frozen=True, slots=True)
class Trial:
    """One client attacked once; `cell` is the index of its cell in the sweep."""

    id: str
    cell: int
    number: int
    items: tuple[int, ...]
    seed: int


def unique_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without duplicates: equal settings are one cell, under its first axes."""
    by_id: dict[str, Cell] = {}
    for cell in cells:
        by_id.setdefault(cell.id, cell)
    return list(by_id.values())


def trials_of(cells: list[Cell]) -> list[Trial]:
    """Return every trial, by cell, seed and number."""
    trials: list[Trial] = []
    items: dict[DataChoice, list[tuple[int, ...]]] = {}
    for place, cell in enumerate(cells):
        settings = read_baseline(cell.settings) if cell.baseline else read_settings(cell.settings)
        data = settings.data
        digest = fingerprint(data.name, data.part)
        known = items.setdefault(data, [])
        known += [items_of(data, number) for number in range(len(known), settings.trials)]
        for base in settings.seeds:
            for number in range(settings.trials):
                seed = (base << SEED_BITS) + number
                ident = trial_id(cell.id, digest, known[number], seed)
                trials.append(Trial(ident, place, number, known[number], seed))
    return trials


def baseline_cells(cells: list[Cell]) -> list[Cell]:
    """Return the cells of the null baselines: one for each data choice and each baseline."""
    largest: dict[str, Cell] = {}
    for cell in cells:
        for name in read_settings(cell.settings).baselines:
            baseline = _baseline(cell, name)
            known = largest.get(baseline.id)
            if known is None or read_baseline(known.settings).trials < read_baseline(baseline.settings).trials:
                largest[baseline.id] = baseline
    return list(largest.values())


def _baseline(cell: Cell, name: str) -> Cell:
    settings = read_settings(cell.settings)
    plain = {
        **{field: cell.settings[field] for field in ("name", "data")},
        "attack": {"name": name},
        "trials": settings.trials,
        "seeds": list(settings.seeds[:1]),
    }
    axes = {axis: value for axis, value in cell.axes.items() if axis.split(".")[0] == "data"}
    return Cell(id=f"b{cell_id(plain)[1:]}", settings=plain, axes={"attack": name, **axes}, baseline=True)
