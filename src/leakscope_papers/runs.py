"""The run of a part as measured cells in the paper's words: trials of a scenario, rows of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from leakscope.core.record import IMAGE_MSE, Cell
from leakscope.store import Run
from leakscope_papers.cell_measures import cell_curves, meaningful, measure_with_similarity, within_cap
from leakscope_papers.comparing import Measured
from leakscope_papers.items import Item, Part, home_of
from leakscope_papers.measure_names import SPREADS
from leakscope_papers.measures import Value, measure, value_of, with_top_inside
from leakscope_papers.naming import meets, places_of, setting_at
from leakscope_papers.planned import Settings, settings_hash
from leakscope_papers.programs.rows import FILE, Rows, read_rows, rows_exist
from leakscope_papers.scales import note_of
from leakscope_papers.scored import ALPHA, SIMILARITY, Scored, score_cells

ACCURACY = "accuracy"
NEEDED = (
    "trial", "cell", "outcome", "iterations", "mismatch", "sample", "mse", "psnr", "ssim", "recovered", "label_correct", ALPHA,
    SIMILARITY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartRun:
    """The run of a part: its cells, their settings by hash, the number of trials or rows done, where and when it was made."""

    cells: tuple[Measured, ...]
    settings: Mapping[str, Settings]
    done: int
    facts: Mapping[str, str]


def run_exists(item: Item, part: Part, directory: Path) -> bool:
    """Return whether a directory contains the run of a part, for an item with traces also their files."""
    if home_of(item, part)[1].program:
        return rows_exist(directory)
    return Run.exists(directory) and (not item.traces or Run.open(directory).has_tensors())


def read_part(item: Item, part: Part, directory: Path) -> PartRun:
    """Return the run of a part in a directory."""
    if home_of(item, part)[1].program:
        rows = read_rows(directory)
        written = datetime.fromtimestamp((directory / FILE).stat().st_mtime, UTC).date().isoformat()
        facts = {**rows.facts, "date": written}
        cells = tuple(replace(cell, source=facts) for cell in row_cells(item, part, rows))
        return PartRun(cells, {settings_hash(rows.settings): rows.settings}, len(rows.rows), facts)
    run = Run.open(directory)
    settings = {settings_hash(cell.settings): cell.settings for cell in run.cells() if not cell.baseline}
    facts = {**run.facts(), "date": str(run.history()[-1]["started"])[:10], **_spent(run)}
    cells = tuple(replace(cell, source=facts) for cell in measured_cells(item, part, run))
    return PartRun(cells, settings, landed(item, part, run), facts)


def _spent(run: Run) -> dict[str, str]:
    """Return the seconds of all stored chunks of a run on its device, and their trials with the baselines'."""
    chunks = run.chunks()
    seconds = sum(cast(float, chunk["seconds"]) for chunk in chunks)
    return {"seconds": f"{seconds:.0f}", "trials": str(sum(cast(int, chunk["trials"]) for chunk in chunks))}


def landed(item: Item, part: Part, run: Run) -> int:
    """Return the number of stored trials of a run in cells of the item, without baselines."""
    cells = [cell.id for cell in run.cells() if not cell.baseline and stands(item, part, cell.settings)]
    return len(np.unique(run.columns(cells=cells, names=("trial",))["trial"])) if cells else 0


def stands(item: Item, part: Part, settings: Settings) -> bool:
    """Return whether a cell with these settings has a place in the item."""
    return any(True for _ in places_of(item, part, settings))


def measured_cells(item: Item, part: Part, run: Run) -> list[Measured]:
    """Return the cells of a run in the words of the paper, one for each reading and attacker they belong to."""
    numbers = {cell.id: number for number, cell in enumerate(run.cells(current=False))}
    scored = score_cells(run.columns(names=NEEDED))
    cells: list[Measured] = []
    for cell in run.cells():
        trials = scored.get(numbers[cell.id])
        if not cell.baseline and trials is not None:
            cells += _named_cells(item, part, cell, with_traces(run, trials) if item.traces else trials)
    return cells


def with_traces(run: Run, cell: Scored) -> Scored:
    """Return a cell with mismatch and image MSE along the iterations, -1 after a trial's end; omitted unless all trials have them."""
    stored = [run.tensors(trial) for trial in cell.ids]

    def stacked(name: str, beside: str) -> Tensor | None:
        complete = all(beside in tensors for tensors in stored)
        return torch.stack([tensors[name] for tensors in stored]) if complete else None

    return replace(
        cell,
        trace=stacked("trace", "trace"),
        trace_at=stacked("trace_at", "trace"),
        image_mse=stacked(IMAGE_MSE, IMAGE_MSE),
        image_mse_at=stacked("snapshots_at", IMAGE_MSE),
    )


def row_cells(item: Item, part: Part, rows: Rows) -> list[Measured]:
    """Return the rows of a program in the words of the paper; rules read the row's place, with `settings` inside it."""
    cells: list[Measured] = []
    digest, note = settings_hash(rows.settings), note_of(part, rows.settings)
    for row in rows.rows:
        numbers = with_top_inside(row.values)
        trials = trials_of(numbers)
        values = {name: _with_n(name, value_of(name, each), each, trials) for name, each in numbers.items()}
        for where, column in places_of(item, part, {"settings": rows.settings, **row.where}):
            cell = f"{part.name}, {row.key}"  # another part may use the same key for another number
            cells.append(
                Measured(where, column, trials, values, {}, cell, note, row.curves, part.name, settings=digest)
            )
    return cells


def trials_of(numbers: Mapping[str, Sequence[float | None]]) -> int:
    """Return the n of a program's row: the most frequent count of its measures (ties: the larger); accuracy only if alone.

    >>> trials_of({"rmse": [0.1] * 48, "ratio": [1.0] * 48, "tracing": [0.0] * 10, "accuracy": [1.0] * 1000})
    48
    """
    counted = {name: len(each) for name, each in numbers.items() if not name.endswith(SPREADS)}
    sizes = Counter(n for name, n in counted.items() if name != ACCURACY) or Counter(counted.values())
    return max(sizes, key=lambda n: (sizes[n], n), default=max(map(len, numbers.values()), default=0))


def _with_n(name: str, value: Value, numbers: Sequence[float | None], trials: int) -> Value:
    """Return a value that says what it is over if that is not the n of its row."""
    n = len(numbers)
    if value.over or name.endswith(SPREADS) or (n == trials and name != ACCURACY):
        return value
    if name == ACCURACY and n > 1 and all(number in (0, 1) for number in numbers):
        return replace(value, over=f"{n} test pictures")
    if n == trials:
        return value
    return replace(value, over=f"{n} {'training' if name == ACCURACY else 'number'}{'s' * (n != 1)}")


def _named_cells(item: Item, part: Part, cell: Cell, trials: Scored) -> list[Measured]:
    digest, note = settings_hash(cell.settings), note_of(part, cell.settings)
    cells: list[Measured] = []
    for where, column in places_of(item, part, cell.settings):
        named = Measured(where, column, trials.trials, {}, trials.outcomes, cell.id, note, {}, part.name, digest)
        if item.caps is None:
            values = meaningful(measure_with_similarity(trials, cell.settings), cell.settings)
            cells.append(replace(named, values=values, curves=cell_curves(trials)))
            continue
        longest = setting_at(cell.settings, "attack.iterations")
        for cap in item.caps.at:
            if isinstance(longest, int) and cap <= longest:
                values = within_cap(meaningful(measure(trials, cap), cell.settings))
                cells.append(replace(named, where={**where, item.caps.axis: cap}, values=values))
    return cells


def joined(cells: Sequence[Measured], beside: Sequence[Measured]) -> list[Measured]:
    """Return the cells with the values of the `beside` cells of the same reading whose place they contain; others stay separate cells."""
    joined_cells: list[Measured] = []
    used: set[int] = set()
    for cell in cells:
        values = dict(cell.values)
        for number, other in enumerate(beside):
            if other.column.reading == cell.column.reading and meets(cell.where, dict(other.where)):
                used.add(number)
                values |= {name: _over(value, other.trials) for name, value in other.values.items()}
        joined_cells.append(replace(cell, values=values))
    return joined_cells + [other for number, other in enumerate(beside) if number not in used]


def _over(value: Value, runs: int) -> Value:
    return value if value.over else replace(value, over=f"{runs} training{'s' * (runs != 1)}")
