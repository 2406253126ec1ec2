"""The trials of a scenario: every cell, seed and client once, each with an id from all that determines it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from leakscope.core.record import Cell
from leakscope.scenario.cell import BaselineSettings, CellSettings, read_baseline
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


@dataclass(frozen=True, slots=True)
class Sweep:
    """All cells of a scenario, their settings by the cell's index (attacks and null baselines), and all trials."""

    cells: tuple[Cell, ...]
    attacked: Mapping[int, CellSettings]
    baselines: Mapping[int, BaselineSettings]
    trials: tuple[Trial, ...]


def sweep_of(cells: Sequence[Cell], settings: Sequence[CellSettings]) -> Sweep:
    """Return the sweep over these cells and the null baselines they ask for."""
    attacked = dict(enumerate(settings))
    every = [*cells, *_baseline_cells(cells, settings)]
    baselines = {place: read_baseline(every[place].settings) for place in range(len(cells), len(every))}
    return Sweep(tuple(every), attacked, baselines, tuple(_trials(every, {**attacked, **baselines})))


def unique_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without duplicates: equal settings are one cell, under its first axes."""
    by_id: dict[str, Cell] = {}
    for cell in cells:
        by_id.setdefault(cell.id, cell)
    return list(by_id.values())


def _trials(cells: Sequence[Cell], settings: Mapping[int, CellSettings | BaselineSettings]) -> list[Trial]:
    """Return every trial, by cell, seed and number."""
    trials: list[Trial] = []
    items: dict[DataChoice, list[tuple[int, ...]]] = {}
    for place, cell in enumerate(cells):
        chosen, data = settings[place], settings[place].data
        digest = fingerprint(data.name, data.part, data.length, data.words, data.shortest)
        known = items.setdefault(data, [])
        known += [items_of(data, number) for number in range(len(known), chosen.trials)]
        for base in chosen.seeds:
            for number in range(chosen.trials):
                seed = (base << SEED_BITS) + number
                ident = trial_id(cell.id, digest, known[number], seed)
                trials.append(Trial(ident, place, number, known[number], seed))
    return trials


def _baseline_cells(cells: Sequence[Cell], settings: Sequence[CellSettings]) -> list[Cell]:
    """Return the cells of the null baselines: one for each data choice and each baseline, with the most trials asked for."""
    largest: dict[str, tuple[int, Cell]] = {}
    for cell, chosen in zip(cells, settings, strict=True):
        for name in chosen.baselines:
            baseline = _baseline(cell, chosen, name)
            if chosen.trials > largest.get(baseline.id, (-1, cell))[0]:
                largest[baseline.id] = (chosen.trials, baseline)
    return [cell for _, cell in largest.values()]


def _baseline(cell: Cell, settings: CellSettings, name: str) -> Cell:
    plain = {
        "name": cell.settings["name"],
        "data": {**cast(dict[str, object], cell.settings["data"]), "samples": settings.data.samples},
        "attack": {"name": name},
        "trials": settings.trials,
        "seeds": list(settings.seeds[:1]),
        **({"metrics": list(settings.metrics)} if settings.metrics else {}),
    }
    axes = {axis: value for axis, value in cell.axes.items() if axis.split(".")[0] == "data"}
    return Cell(id=f"b{cell_id(plain)[1:]}", settings=plain, axes={"attack": name, **axes}, baseline=True)
