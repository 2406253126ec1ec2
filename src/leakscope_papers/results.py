"""The runs of an item as measured cells in the paper's words."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.record import IMAGE_MSE, Cell, Plain
from leakscope.store import Run
from leakscope_papers.bounds import SPREADS
from leakscope_papers.cell_curves import cell_curves
from leakscope_papers.claims import Finding, examine_both
from leakscope_papers.comparing import Column, Comparison, Measured, compare
from leakscope_papers.gains import with_gains
from leakscope_papers.items import Item, Part, choose_items, home_of
from leakscope_papers.joining import joined
from leakscope_papers.measures import Value, measure, value_of, with_top_inside
from leakscope_papers.naming import belongs, name_cell, setting_at
from leakscope_papers.programs.rows import Rows, read_rows, rows_exist
from leakscope_papers.progress import landed, partly, wanted
from leakscope_papers.saying import meaningful, within_cap
from leakscope_papers.scales import SCALES, parts_at, run_directory, scale_of
from leakscope_papers.scored import ALPHA, SIMILARITY, Scored, score_cells
from leakscope_papers.similarity import measure_with_similarity

ACCURACY = "accuracy"
NEEDED = (
    "trial", "cell", "outcome", "iterations", "mismatch", "sample", "mse", "psnr", "ssim", "recovered", "label_correct", ALPHA,
    SIMILARITY,
)  # fmt: skip
TOLD_FACTS = ("device", "torch", "revision")


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An item at one scale: its runs by part, the comparison, what became of the claims.

    `missing` are the parts without a run, `partial` says of the others how much is there where that is not all. `facts` are those of
    all runs, see `gathered_facts`.
    """

    item: Item
    scale: str
    runs: dict[str, Path]
    missing: tuple[str, ...]
    cells: tuple[Measured, ...]
    comparison: Comparison
    findings: tuple[Finding, ...]
    facts: dict[str, str]
    partial: dict[str, str] = field(default_factory=dict)


def result_of(item: Item, scale: str, out: Path) -> Result | None:
    """Return the result of an item at a scale, None if none of its runs exists."""
    runs: dict[str, Path] = {}
    missing: list[str] = []
    cells: list[Measured] = []
    beside: list[Measured] = []
    facts: dict[str, dict[str, str]] = {}
    partial: dict[str, str] = {}
    for part in parts_at(item, scale):
        directory = run_directory(out, item, part, scale)
        program = bool(home_of(item, part)[1].program)
        own = functools.partial(_stands, item, part)
        if not (rows_exist(directory) if program else Run.exists(directory)):
            missing.append(part.name)
            continue
        runs[part.name] = directory
        if program:
            rows = read_rows(directory)
            facts[part.name] = dict(rows.facts)
            (beside if part.joins else cells).extend(row_cells(item, part, rows))
            there = len(rows.rows)
        else:
            run = Run.open(directory)
            facts[part.name] = run.facts()
            cells += measured_cells(item, part, run)
            there = landed(run, own)
        said = partly(there, wanted(item, part, scale, own), rows=program)
        partial |= {part.name: said} if said else {}
    if not runs:
        return None
    cells = with_gains(item.gains, joined(cells, beside))
    judged = not scale_of(item, scale).stand_in
    cells = cells if judged else [replace(cell, note="") for cell in cells]  # a note speaks of the part's own data
    comparison = compare(item, cells, judged=judged)
    findings = [
        finding
        for claim in item.claims
        for column in comparison.columns
        for finding in examine_both(claim, cells, column)
    ]
    told = tuple(findings) if judged else ()
    found = gathered_facts(facts)
    return Result(item, scale, runs, tuple(missing), tuple(cells), comparison, told, found, partial)


def gathered_facts(parts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the facts that all parts share; of device, torch and revision those that differ, together under the first of them.

    >>> gathered_facts({"cifar10": {"device": "H200", "torch": "2.11"}, "mnist": {"device": "cpu", "torch": "2.11"}})
    {'torch': '2.11', 'device': 'H200 (cifar10); cpu (mnist)'}
    """
    every = list(parts.values())
    shared = {name: value for name, value in every[0].items() if all(own.get(name) == value for own in every)}
    apart = [name for name in TOLD_FACTS if name not in shared and any(name in own for own in every)]
    if not apart:
        return shared
    machines: dict[str, list[str]] = {}
    for part, own in parts.items():
        words = ", ".join(own[name] for name in apart if name in own) or "not known"
        machines.setdefault(words, []).append(part)
    return shared | {apart[0]: "; ".join(f"{words} ({', '.join(names)})" for words, names in machines.items())}


def measured_cells(item: Item, part: Part, run: Run) -> list[Measured]:
    """Return the cells of a run in the words of the paper, one for each reading and attacker they belong to."""
    every = run.cells(current=False)
    scored = score_cells(run.columns(names=NEEDED))
    found: list[Measured] = []
    for cell in run.cells():
        own = scored.get(next(i for i, other in enumerate(every) if other.id == cell.id))
        if not cell.baseline and own is not None:
            found += _named_cells(item, part, cell, with_traces(run, own) if item.traces else own)
    return found


def with_traces(run: Run, cell: Scored) -> Scored:
    """Return a cell with mismatch and image MSE of its trials along their iterations, -1 where a trial did not get there.

    What not all of them have is left out.
    """
    stored = [run.tensors(trial) for trial in cell.ids]

    def stacked(name: str, beside: str) -> Tensor | None:
        there = all(beside in tensors for tensors in stored)
        return torch.stack([tensors[name] for tensors in stored]) if there else None

    return replace(
        cell,
        trace=stacked("trace", "trace"),
        trace_at=stacked("trace_at", "trace"),
        image_mse=stacked(IMAGE_MSE, IMAGE_MSE),
        image_mse_at=stacked("snapshots_at", IMAGE_MSE),
    )


def row_cells(item: Item, part: Part, rows: Rows) -> list[Measured]:
    """Return the rows of a program in the words of the paper; rules read the place of a row, and `settings` as a part of it."""
    found: list[Measured] = []
    for row in rows.rows:
        numbers = with_top_inside(row.values)
        trials = trials_of(numbers)
        values = {name: _with_own_n(name, value_of(name, own), own, trials) for name, own in numbers.items()}
        for where, column in _places(item, part, {"settings": rows.settings, **row.where}):
            cell = f"{part.name}, {row.key}"  # keys are a part's own: another reading may use the same one for another number
            found.append(Measured(where, column, trials, values, cell=cell, note=part.note, curves=row.curves))
    return found


def trials_of(numbers: Mapping[str, Sequence[float | None]]) -> int:
    """Return the n of a program's row: how many numbers most of its measures have, of ties the larger; accuracy counts alone only.

    >>> trials_of({"rmse": [0.1] * 48, "ratio": [1.0] * 48, "tracing": [0.0] * 10, "accuracy": [1.0] * 1000})
    48
    """
    counted = {name: len(own) for name, own in numbers.items() if not name.endswith(SPREADS)}
    sizes = Counter(n for name, n in counted.items() if name != ACCURACY) or Counter(counted.values())
    return max(sizes, key=lambda n: (sizes[n], n), default=max(map(len, numbers.values()), default=0))


def _with_own_n(name: str, value: Value, numbers: Sequence[float | None], trials: int) -> Value:
    """Return a value that says what it is over where that is not the n of its row."""
    n = len(numbers)
    if value.over or name.endswith(SPREADS) or (n == trials and name != ACCURACY):
        return value
    if name == ACCURACY and n > 1 and all(number in (0, 1) for number in numbers):
        return replace(value, over=f"{n} test pictures")
    if n == trials:
        return value
    return replace(value, over=f"{n} {'training' if name == ACCURACY else 'number'}{'s' * (n != 1)}")


def _named_cells(item: Item, part: Part, cell: Cell, own: Scored) -> list[Measured]:
    found: list[Measured] = []
    for where, column in _places(item, part, cell.settings):
        if item.caps is None:
            values = meaningful(measure_with_similarity(own, cell.settings), cell.settings)
            curves = cell_curves(own)
            found.append(Measured(where, column, own.trials, values, own.outcomes, cell.id, part.note, curves))
            continue
        longest = int(setting_at(cell.settings, "attack.iterations") or 0)
        for cap in item.caps.at:
            if cap <= longest:
                place = {**where, item.caps.axis: cap}
                values = within_cap(meaningful(measure(own, cap), cell.settings))
                found.append(Measured(place, column, own.trials, values, own.outcomes, cell.id, part.note))
    return found


def _stands(item: Item, part: Part, settings: Mapping[str, Any]) -> bool:
    """Return whether a cell with these settings stands anywhere in the item."""
    return any(True for _ in _places(item, part, settings))


def _places(item: Item, part: Part, settings: Mapping[str, Any]) -> Iterator[tuple[dict[str, Plain], Column]]:
    """Yield where a cell stands in the paper's words, for each reading and attacker it belongs to."""
    for reading in item.readings:
        if reading.parts and part.name not in reading.parts:
            continue
        where = name_cell(item, part, reading, settings)
        told = item.attackers[:1] if part.joins else item.attackers
        for place, attacker in enumerate(told):
            if where is not None and (
                belongs(settings, reading) if part.joins else belongs(settings, reading, attacker)
            ):
                yield where, Column(reading.label, attacker.label, place == 0)


def results_in(out: Path, scale: str | None = None, names: list[str] | None = None) -> list[Result]:
    """Return a result for every item that has runs in a directory, at the given scale or the largest one there.

    Raises if there is nothing: the message says what to run first.
    """
    found: list[Result] = []
    for item in choose_items(names or ["all"]):
        for size in (scale,) if scale else reversed(SCALES):
            result = result_of(item, size, out) if size in item.scales else None
            if result is not None:
                found.append(result)
                break
    if not found:
        at = f" at scale {scale}" if scale else ""
        hint = f"leakscope paper run all --scale {scale or 'smoke'} --out {out}"
        raise InputError(f"{out} holds no run of a paper's item{at}; first run: {hint}")
    return found
