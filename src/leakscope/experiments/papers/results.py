"""The runs of an item as measured cells in the paper's words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.experiments.papers.claims import Finding, examine_both
from leakscope.experiments.papers.comparing import Column, Comparison, Measured, compare
from leakscope.experiments.papers.items import Item, Part, item_files, read_item
from leakscope.experiments.papers.measures import Scored, measure, score_cells
from leakscope.experiments.papers.naming import belongs, name_cell, setting_at
from leakscope.experiments.papers.scales import SCALES, parts_at, run_directory, scale_of
from leakscope.store import Run

NEEDED = (
    "trial", "cell", "outcome", "iterations", "sample", "mse", "ssim", "recovered", "label_correct",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An item at one scale: its runs by part, the comparison, what became of the claims."""

    item: Item
    scale: str
    runs: dict[str, Path]
    missing: tuple[str, ...]
    cells: tuple[Measured, ...]
    comparison: Comparison
    findings: tuple[Finding, ...]
    facts: dict[str, str]


def result_of(item: Item, scale: str, out: Path) -> Result | None:
    """Return the result of an item at a scale, None if none of its runs exists."""
    runs: dict[str, Path] = {}
    missing: list[str] = []
    cells: list[Measured] = []
    facts: dict[str, str] = {}
    for part in parts_at(item, scale):
        directory = run_directory(out, item, part, scale)
        if not Run.exists(directory):
            missing.append(part.name)
            continue
        runs[part.name] = directory
        run = Run.open(directory)
        facts = run.facts()
        cells += measured_cells(item, part, run)
    if not runs:
        return None
    judged = not scale_of(item, scale).stand_in
    comparison = compare(item, cells, judged=judged)
    findings = [
        finding
        for claim in item.claims
        for column in comparison.columns
        for finding in examine_both(claim, cells, column)
    ]
    return Result(item, scale, runs, tuple(missing), tuple(cells), comparison, tuple(findings) if judged else (), facts)


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
    """Return a cell with the mismatch of its trials along their iterations, -1 where a trial did not get there."""
    stored = [run.tensors(trial) for trial in cell.ids]
    if not all("trace" in tensors for tensors in stored):
        return cell
    trace = torch.stack([tensors["trace"] for tensors in stored])
    return replace(cell, trace=trace, trace_at=torch.stack([tensors["trace_at"] for tensors in stored]))


def _named_cells(item: Item, part: Part, cell: Cell, own: Scored) -> list[Measured]:
    found: list[Measured] = []
    for reading in item.readings:
        if reading.parts and part.name not in reading.parts:
            continue
        where = name_cell(item, part, reading, cell.settings)
        for place, attacker in enumerate(item.attackers):
            if where is None or not belongs(cell.settings, reading, attacker):
                continue
            column = Column(reading.label, attacker.label, place == 0)
            if item.caps is None:
                found.append(Measured(where, column, own.trials, measure(own), own.outcomes, cell.id, part.note))
                continue
            longest = int(setting_at(cell.settings, "attack.iterations") or 0)
            found += [
                Measured(
                    {**where, item.caps.axis: cap},
                    column,
                    own.trials,
                    measure(own, cap),
                    own.outcomes,
                    cell.id,
                    part.note,
                )
                for cap in item.caps.at
                if cap <= longest
            ]
    return found


def results_in(out: Path, scale: str | None = None, names: list[str] | None = None) -> list[Result]:
    """Return a result for every item that has runs in a directory, at the given scale or the largest one there.

    Raises if there is nothing: the message says what to run first.
    """
    found: list[Result] = []
    for name in names or item_files():
        item = read_item(name)
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
