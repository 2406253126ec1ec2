"""A gallery shows everything, or a fair part of it that rule and seed alone decide."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.record import Cell
from leakscope.report import Sheet, make_sheet
from leakscope.report.gallery import AT_RANDOM, Choice, choose


def make(scores: list[list[float]], baseline: bool = True) -> Sheet:
    """Return a sheet of one cell for each list of scores, trials of one sample, and a baseline."""
    every = scores + [[0.0]] * baseline
    cells = [Cell(id=str(i), settings={}, baseline=baseline and i == len(scores)) for i in range(len(every))]
    cell = np.concatenate([np.full(len(own), i) for i, own in enumerate(every)])
    number = np.concatenate([np.arange(len(own)) for own in every])
    n = len(cell)
    columns = {
        "trial": np.array([f"{c}-{t}" for c, t in zip(cell, number, strict=True)], dtype=object),
        "cell": cell,
        "number": number,
        "sample": np.zeros(n, dtype=np.int64),
        "outcome": np.array(["converged"] * n, dtype=object),
        "mse": np.concatenate([np.array(own) for own in every]),
    }
    return make_sheet(cells, columns)


SCORES = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=12), min_size=1, max_size=6)


@given(SCORES, st.integers(1, 40), st.integers(0, 5))
@settings(deadline=None)
def test_the_limit_holds_no_baseline_is_shown_and_cells_share_fairly(
    scores: list[list[float]], limit: int, seed: int
) -> None:
    sheet = make(scores)
    chosen = choose(sheet, limit, seed=seed)
    total = sum(len(own) for own in scores)
    assert len(chosen) == min(limit, total)
    assert len({choice.row for choice in chosen}) == len(chosen)
    assert not sheet.baseline[[choice.row for choice in chosen]].any()
    assert [c.row for c in chosen] == sorted(c.row for c in chosen)
    shown = Counter(int(sheet.cell[choice.row]) for choice in chosen)
    for cell, own in enumerate(scores):
        others = max((shown[c] for c in range(len(scores)) if c != cell), default=0)
        assert shown[cell] == len(own) or shown[cell] >= others - 1
    assert choose(sheet, limit, seed=seed) == chosen


@given(SCORES)
@settings(deadline=None)
def test_with_room_for_three_each_the_median_the_best_and_the_worst_are_there(scores: list[list[float]]) -> None:
    sheet = make([[*own, 0.5, 0.25, 0.75] for own in scores] * 2)
    chosen = choose(sheet, 3 * 2 * len(scores))
    for cell in range(2 * len(scores)):
        rows = np.flatnonzero(sheet.cell == cell)
        own = {c.place: c.row for c in chosen if sheet.cell[c.row] == cell}
        mse = np.sort(sheet.columns["mse"][rows])
        seen = {place: float(sheet.columns["mse"][row]) for place, row in own.items() if place != AT_RANDOM}
        assert seen.get("median", mse[len(mse) // 2]) == mse[len(mse) // 2]
        assert seen.get("best", mse[0]) == mse[0]
        assert seen.get("worst", mse[-1]) == mse[-1]


def test_where_all_fit_none_is_picked_and_none_has_a_place() -> None:
    sheet = make([[0.1, 0.2], [0.3]])
    assert choose(sheet, 3) == [Choice(0), Choice(1), Choice(2)]


@pytest.mark.parametrize("seed", [0, 1])
def test_random_pictures_are_the_same_in_every_cell(seed: int) -> None:
    sheet = make([[0.5] * 40, [0.5] * 40])
    chosen = choose(sheet, 26, seed=seed)

    def numbers(cell: int) -> set[int]:
        own = (c.row for c in chosen if sheet.cell[c.row] == cell and c.place == AT_RANDOM)
        return {int(sheet.columns["number"][row]) for row in own}

    assert len(numbers(0)) >= 10
    assert numbers(0) == numbers(1)


def test_another_seed_shows_others() -> None:
    sheet = make([[0.5] * 100])
    assert choose(sheet, 20, seed=0) != choose(sheet, 20, seed=1)
