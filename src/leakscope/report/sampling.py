"""Which attacked pictures a gallery shows when it cannot show all: a fair sample, chosen by rule and by seed.

Every cell gives in turn its median, its best, its worst (by MSE), then others at random; the random order is one order of
pictures for all cells, so that the same picture is seen under several settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leakscope.report.sheet import Codes, Sheet

PICKED = ("median", "best", "worst")
AT_RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of the sheet, and why it is shown: '' where all are."""

    row: int
    place: str = ""


def choose(sheet: Sheet, limit: int, *, seed: int = 0) -> list[Choice]:
    """Return up to `limit` samples of attacks, in the order of the sheet; all of them if there are no more."""
    rows = np.flatnonzero(sheet.samples & ~sheet.baseline)
    if len(rows) <= limit:
        return [Choice(int(row)) for row in rows]
    rng = np.random.default_rng(seed)
    queues = [_queue(sheet, rows[sheet.cell[rows] == cell], rank) for cell, rank in _ranks(sheet, rows, rng)]
    chosen: dict[int, str] = {}
    for turn in range(max(len(queue) for queue in queues)):
        for queue in queues:
            if turn < len(queue) and len(chosen) < limit:
                chosen[queue[turn].row] = queue[turn].place
    return [Choice(row, chosen[row]) for row in sorted(chosen)]


def _ranks(sheet: Sheet, rows: Codes, rng: np.random.Generator) -> list[tuple[int, Codes]]:
    """Return the cells in random order, each with the shared random rank of every row."""
    pictures = np.stack([sheet.columns["number"][rows], sheet.columns["sample"][rows]])
    _, code = np.unique(pictures, axis=1, return_inverse=True)
    rank = np.zeros(len(sheet), dtype=np.int64)
    rank[rows] = rng.permutation(int(code.max()) + 1)[code.reshape(-1)]
    return [(int(cell), rank) for cell in rng.permutation(np.unique(sheet.cell[rows]))]


def _queue(sheet: Sheet, rows: Codes, rank: Codes) -> list[Choice]:
    """Return the samples of one cell in the order in which they are taken."""
    by_score = rows[np.argsort(sheet.floats("mse")[rows], kind="stable")]
    first = dict.fromkeys(int(by_score[i]) for i in (len(by_score) // 2, 0, -1))
    places = dict(zip((int(by_score[i]) for i in (len(by_score) // 2, 0, -1)), PICKED, strict=True))
    others = (int(row) for row in rows[np.argsort(rank[rows], kind="stable")] if int(row) not in first)
    return [Choice(row, places[row]) for row in first] + [Choice(row, AT_RANDOM) for row in others]
