"""How much of a private table row came back: MSE, and for every column how often its decoded value is right.

A reconstruction is a vector of real numbers. Only a valid row can be compared with a true one value by value, so rows are
decoded first (see `leakscope.data.encoding`): a category by the largest of its entries, a number clamped to the column's range
and rounded where the column is whole. The rule for a match:

    category        the same word
    number          |guess - truth| <= tolerance * (highest - lowest value of the column)

The default tolerance is one hundredth of the range: under a year of age, and about the accuracy that an MSE of 1e-4 stands for.
Tolerance 0 asks for the very same number. Columns that are nearly always the same are matched without any attack: read the
baseline beside each rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate, estimate_mean, estimate_rate
from leakscope.metrics.scoring import clean

TOLERANCE = 0.01
ROUNDING = 1e-6  # of the range: what float32 loses on the way there and back

Value = str | int | float
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class TableScores:
    """What many trials say about a table.

    `columns` holds for each column how often its value is right, `values` how often any value is, `row` how often a whole row
    is, `mse` the mean squared difference of the encoded rows in [0, 1].
    """

    columns: Mapping[str, Estimate]
    values: Estimate
    row: Estimate
    mse: Estimate
    tolerance: float


def matches(
    truth: Sequence[Row], guess: Sequence[Row], spans: Mapping[str, float], *, tolerance: float = TOLERANCE
) -> Tensor:
    """Return N x K: whether each column of each decoded row is right, in the order of the first true row.

    `spans` holds the range of every column of numbers.

    >>> true = [{"age": 39, "sex": "Male"}]
    >>> matches(true, [{"age": 40, "sex": "Male"}], {"age": 73.0})
    tensor([[False,  True]])
    """
    if not 0 <= tolerance <= 1:
        raise InputError(f"tolerance must be in [0, 1] (a share of the column's range), got {tolerance}")
    if len(truth) != len(guess):
        raise InputError(f"matches needs one decoded row a true row, got {len(truth)} and {len(guess)}")
    allowed = {name: (tolerance + ROUNDING) * span for name, span in spans.items()}
    names = list(truth[0]) if truth else []
    rows = zip(truth, guess, strict=True)
    right = [[_same(true[name], guessed[name], allowed.get(name)) for name in names] for true, guessed in rows]
    return torch.tensor(right, dtype=torch.bool).reshape(len(truth), len(names))


def _same(truth: Value, guess: Value, allowed: float | None) -> bool:
    if allowed is None:
        return truth == guess
    return abs(float(guess) - float(truth)) <= allowed


def score_rows(
    truth: Tensor,
    guess: Tensor,
    decode: Callable[[Tensor], Sequence[Row]],
    spans: Mapping[str, float],
    *,
    scored: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> TableScores:
    """Return the scores of T trials of N encoded rows (T x N x F), guesses already in the order of their truths.

    `decode` turns M x F into M valid rows. `scored` (T x N) is False where a place is padding. Intervals come from the spread
    between trials, as everywhere in this room.
    """
    if truth.ndim != 3 or truth.shape != guess.shape or 0 in truth.shape:
        raise InputError(
            f"score_rows needs rows T x N x F, none empty, got {tuple(truth.shape)} and {tuple(guess.shape)}"
        )
    counted = torch.ones(truth.shape[:2], dtype=torch.bool) if scored is None else scored
    shown = clean(guess)
    true_rows, made_rows = (decode(rows.reshape(-1, rows.shape[-1])) for rows in (truth, shown))
    right = matches(true_rows, made_rows, spans, tolerance=tolerance).reshape(*truth.shape[:2], -1)
    names = list(true_rows[0])
    return TableScores(
        columns={name: estimate_rate(right[..., place], counted) for place, name in enumerate(names)},
        values=estimate_rate(right.flatten(1), counted[..., None].expand_as(right).flatten(1)),
        row=estimate_rate(right.all(-1), counted),
        mse=estimate_mean((truth - shown).square().mean(-1), counted),
        tolerance=tolerance,
    )
