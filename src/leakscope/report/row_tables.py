"""Private table rows beside their decoded reconstructions, and how often each column is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakscope.core.record import Cell
from leakscope.metrics.scoring import clean
from leakscope.metrics.tabular import TOLERANCE, TableScores, Value, matches, score_rows
from leakscope.report.cells import ATTACK, axis_value_text, name_of
from leakscope.report.numbers import short
from leakscope.scenario.encodings import Decoder, decoders_of

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.store import Run

MOST_TRIALS = 1000
EXAMPLES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One private row and its reconstruction as text, column by column, and which columns are right."""

    name: str
    truth: tuple[str, ...] = field(repr=False)
    guess: tuple[str, ...] = field(repr=False)
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """The rows of one cell: rates per column over its first `MOST_TRIALS` trials, and the rows of its first clients."""

    name: str
    baseline: bool
    columns: tuple[str, ...]
    scores: TableScores
    examples: tuple[Example, ...]


def row_tables(run: Run, *, examples: int = EXAMPLES, tolerance: float = TOLERANCE) -> tuple[RowTable, ...]:
    """Return a table for each cell of a run that attacks table rows; none for images, or if the data set is missing."""
    cells = run.cells()
    decoders = decoders_of(cells)
    tabular = [(cell, decoders[_data(cell)]) for cell in cells if _data(cell) in decoders]
    tables = (_table(run, cell, decoder, examples, tolerance) for cell, decoder in tabular)
    return tuple(table for table in tables if table is not None)


def _data(cell: Cell) -> str:
    data = cell.settings.get("data")
    return str(data.get("name")) if isinstance(data, Mapping) else ""


def _table(run: Run, cell: Cell, decoder: Decoder, examples: int, tolerance: float) -> RowTable | None:
    import torch

    records = sorted(run.records(cell=cell.id), key=lambda record: (record.seed, record.number))[:MOST_TRIALS]
    numbers, truths, guesses = [], [], []
    for record in records:
        tensors = run.tensors(record.trial)
        if "truth" in tensors and "inputs" in tensors:
            numbers.append(record.number)
            truths.append(tensors["truth"])
            guesses.append(tensors["inputs"][tensors["pairing"]] if "pairing" in tensors else tensors["inputs"])
    if not truths:
        return None
    truth, guess = torch.stack(truths), torch.stack(guesses)
    varied = [f"{axis} {axis_value_text(value)}" for axis, value in cell.axes.items() if axis != ATTACK]
    return RowTable(
        name=", ".join([name_of(cell), *varied]),
        baseline=cell.baseline,
        columns=decoder.columns,
        scores=score_rows(truth, guess, decoder.decode, decoder.spans, tolerance=tolerance),
        examples=_examples(numbers, truth, guess, decoder, examples, tolerance),
    )


def _examples(
    numbers: list[int], truth: Tensor, guess: Tensor, decoder: Decoder, most: int, tolerance: float
) -> tuple[Example, ...]:
    """Return the first rows of the first clients, without selection."""
    samples = truth.shape[1]
    true_rows = decoder.decode(truth.flatten(0, 1)[:most])
    guessed_rows = decoder.decode(clean(guess).flatten(0, 1)[:most])
    right = matches(true_rows, guessed_rows, decoder.spans, tolerance=tolerance)
    return tuple(
        Example(
            name=f"client {numbers[place // samples]}" + (f", row {place % samples}" if samples > 1 else ""),
            truth=tuple(_word(true_rows[place][column]) for column in decoder.columns),
            guess=tuple(_word(guessed_rows[place][column]) for column in decoder.columns),
            right=tuple(bool(value) for value in right[place]),
        )
        for place in range(len(true_rows))
    )


def _word(value: Value) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else short(value)
