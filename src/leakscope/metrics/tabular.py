"""Scores of reconstructed table rows: MSE, and for every column how often its decoded value is right.

Rows are decoded before they are compared (see `leakscope.data.encoding`): a category is its largest entry, a number is clamped to
the column's range and rounded if the column is integer. A match is

    category        the same word
    number          |guess - truth| <= tolerance * (highest - lowest value of the column)

The default tolerance is 1/100 of the range: under a year of age, about the accuracy of an MSE of 1e-4; 0 requires equality.
Nearly constant columns match without any attack: compare each rate with the baseline.
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
ROUNDING = 1e-6  # of the range: float32 error of encoding and decoding

Value = str | int | float
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class TableScores:
    """Rates over many trials of right values per column, of any value and of whole rows, and the MSE of encoded rows in [0, 1]."""

    columns: Mapping[str, Estimate]
    values: Estimate
    row: Estimate
    mse: Estimate
    tolerance: float


def matches(
    truth: Sequence[Row], guess: Sequence[Row], spans: Mapping[str, float], *, tolerance: float = TOLERANCE
) -> Tensor:
    """Return N x K: whether each column of each decoded row is right, in the order of the first true row.

    `spans` holds the range of every numeric column.

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
    """Return the scores of T trials of N encoded rows (T x N x F), guesses already paired; `decode` turns M x F into M valid rows."""
    if truth.ndim != 3 or truth.shape != guess.shape or 0 in truth.shape:
        raise InputError(
            f"score_rows needs rows T x N x F, none empty, got {tuple(truth.shape)} and {tuple(guess.shape)}"
        )
    counted = torch.ones(truth.shape[:2], dtype=torch.bool) if scored is None else scored
    shown = clean(guess)
    true_rows, guessed_rows = (decode(rows.reshape(-1, rows.shape[-1])) for rows in (truth, shown))
    right = matches(true_rows, guessed_rows, spans, tolerance=tolerance).reshape(*truth.shape[:2], -1)
    names = list(true_rows[0])
    return TableScores(
        columns={name: estimate_rate(right[..., place], counted) for place, name in enumerate(names)},
        values=estimate_rate(right.flatten(1), counted[..., None].expand_as(right).flatten(1)),
        row=estimate_rate(right.all(-1), counted),
        mse=estimate_mean((truth - shown).square().mean(-1), counted),
        tolerance=tolerance,
    )
