"""Tables of a sweep: rates and means with n and 95 % intervals by attack and axis value, baselines last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from leakscope.core.record import Cell, Plain
from leakscope.metrics import PSNR_CAP
from leakscope.metrics.interval import POSSIBLE, Estimate
from leakscope.report.cells import ATTACK, axes_of, axis_value_text, is_numeric, name_of
from leakscope.report.sheet import Flags, Floats, Groups, Sheet, clusters, count_rows, means, rates

CONVERGED = ("converged", "proved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attack or baseline at one value of the table's axes, over all samples, failures included; None: does not exist."""

    attack: str
    values: Mapping[str, Plain]
    baseline: bool
    cells: tuple[str, ...]
    trials: int
    samples: int
    content: Estimate
    convergence: Estimate | None  # over all trials; None for baselines, which optimise nothing
    label: Estimate | None  # None for baselines, which know the label
    mse: Estimate
    psnr: Estimate  # values above `PSNR_CAP` count as that
    ssim: Estimate | None
    steps: Estimate | None  # over all trials; None for baselines
    not_finite: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    learned: Mapping[str, Estimate] = field(default_factory=dict)  # mean values recovered beside the images


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows by attack and value on `axes`; `pooled` names the axes that the rows pool over."""

    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    pooled: tuple[str, ...] = ()


def cell_table(sheet: Sheet) -> Table:
    """Return the table with one row per cell, none pooled."""
    return tabulate(sheet, tuple(axes_of(sheet.cells)) or (ATTACK,))


def tabulate(sheet: Sheet, axes: Sequence[str], cells: Sequence[Cell] | None = None) -> Table:
    """Return the table of `cells` (None: all) and of the baselines, by attack and values on `axes`."""
    shown = sheet.cells if cells is None else cells
    split = tuple(axis for axis in axes if axis != ATTACK)
    chosen = {cell.id for cell in shown}
    selected = [cell for cell in sheet.cells if cell.baseline or cell.id in chosen]
    keys = sorted({_key(cell, split) for cell in selected}, key=_order(selected, split))
    code = {key: i for i, key in enumerate(keys)}
    group_of = np.array(
        [code[_key(c, split)] if c.baseline or c.id in chosen else -1 for c in sheet.cells], dtype=np.int64
    )
    group = group_of[sheet.cell] if len(sheet.cells) else sheet.cell
    inside = group >= 0
    groups = Groups(group[inside], clusters(sheet, group)[inside], len(keys))
    members: list[list[Cell]] = [[] for _ in keys]
    for cell in selected:
        members[code[_key(cell, split)]].append(cell)
    rows = tuple(row for row in _rows(sheet, inside, groups, members, split) if row.trials)
    varying = axes_of([cell for cell in selected if not cell.baseline])
    pooled = tuple(name for name, values in varying.items() if name not in {*axes, ATTACK} and len(values) > 1)
    return Table(axes=tuple(axes), rows=rows, pooled=pooled)


def have_images(rows: Sequence[Row]) -> bool:
    """Return whether any row has an MSE: sentences have none."""
    return any(row.mse.n for row in rows) or not any(row.samples for row in rows)


def learned_in(rows: Sequence[Row]) -> list[str]:
    """Return the names of the values that any of these rows recovered beside the images."""
    return list(dict.fromkeys(name for row in rows for name in row.learned))


def is_numeric_axis(table: Table) -> bool:
    """Return whether the attacks of a table have two or more values on its first axis, all numbers."""
    axis = table.axes[0]
    values = {
        axis_value_text(row.values[axis]): row.values[axis]
        for row in table.rows
        if not row.baseline and axis in row.values
    }
    return len(values) > 1 and is_numeric(values.values())


_Key = tuple[bool, str, tuple[str, ...]]
_Rank = tuple[bool, int, tuple[int, ...]]


def _key(cell: Cell, split: Sequence[str]) -> _Key:
    """Return what the cells of a row share; an axis that a cell lacks is an empty string."""
    return cell.baseline, name_of(cell), tuple(axis_value_text(cell.axes[a]) if a in cell.axes else "" for a in split)


def _order(cells: Sequence[Cell], split: Sequence[str]) -> Callable[[_Key], _Rank]:
    """Return the sort key of rows: attacks before baselines, each as they come, then in the order of the axes."""
    attacks = {name: i for i, name in enumerate(dict.fromkeys(name_of(cell) for cell in cells))}
    axes = axes_of(cells)
    ranks = [{axis_value_text(value): i for i, value in enumerate(axes.get(axis, ()))} for axis in split]

    def rank(key: _Key) -> _Rank:
        return key[0], attacks[key[1]], tuple(place.get(word, -1) for place, word in zip(ranks, key[2], strict=True))

    return rank


def _rows(
    sheet: Sheet, inside: Flags, groups: Groups, members: Sequence[Sequence[Cell]], split: Sequence[str]
) -> list[Row]:
    first = sheet.first[inside]
    every = sheet.samples[inside]
    converged = np.array([name in CONVERGED for name in sheet.outcomes], dtype=np.bool_)[sheet.outcome[inside]]
    content = rates(groups, sheet.flags("recovered")[inside], every)
    convergence = rates(groups, converged, first)
    correct = sheet.floats("label_correct")[inside]
    label = rates(groups, correct == 1, every & (correct >= 0))
    kinds = {name: _mean(sheet, inside, groups, name) for name in ("mse", "psnr", "ssim")}
    steps = means(groups, sheet.floats("iterations")[inside], first, within=(0.0, math.inf))
    trials, samples = count_rows(groups, first), count_rows(groups, every)
    broken = count_rows(groups, ~sheet.flags("finite")[inside] & every)
    outcomes, learned = _outcomes(sheet, inside, groups), _learned(sheet, inside, groups)
    return [
        Row(
            attack=name_of(cells[0]),
            values={axis: cells[0].axes[axis] for axis in split if axis in cells[0].axes},
            baseline=cells[0].baseline,
            cells=tuple(cell.id for cell in cells),
            trials=int(trials[i]),
            samples=int(samples[i]),
            content=content[i],
            convergence=None if cells[0].baseline else convergence[i],
            label=label[i] if label[i].n and not cells[0].baseline else None,
            mse=kinds["mse"][i],
            psnr=kinds["psnr"][i],
            ssim=kinds["ssim"][i] if kinds["ssim"][i].n else None,
            steps=None if cells[0].baseline else steps[i],
            not_finite=int(broken[i]),
            outcomes=outcomes[i],
            learned={name: values[i] for name, values in learned.items() if values[i].n},
        )
        for i, cells in enumerate(members)
    ]


def _mean(sheet: Sheet, inside: Flags, groups: Groups, name: str) -> list[Estimate]:
    values: Floats = sheet.floats(name)[inside]
    if name == "psnr":
        values = np.minimum(values, PSNR_CAP)
    return means(groups, values, ~np.isnan(values), within=POSSIBLE[name])


def _learned(sheet: Sheet, inside: Flags, groups: Groups) -> dict[str, list[Estimate]]:
    """Return the mean over the trials of every group, for each value recovered beside the images."""
    first = sheet.first[inside]
    columns = {name: sheet.floats(column)[inside] for name, column in sheet.learned.items()}
    anywhere = (-math.inf, math.inf)
    return {
        name: means(groups, values, first & ~np.isnan(values), within=POSSIBLE.get(name, anywhere))
        for name, values in columns.items()
    }


def _outcomes(sheet: Sheet, inside: Flags, groups: Groups) -> list[dict[str, int]]:
    first, kinds = sheet.first[inside], len(sheet.outcomes)
    codes = groups.group[first] * kinds + sheet.outcome[inside][first]
    counts = np.bincount(codes, minlength=groups.count * kinds).reshape(groups.count, kinds)
    return [{name: int(n) for name, n in zip(sheet.outcomes, row, strict=True) if n} for row in counts]
