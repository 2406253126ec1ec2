"""Claims as tests: they hold on the paper's own numbers exactly where the paper does not contradict itself."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.experiments.papers.claims import (
    FAILS,
    HOLDS,
    PARTLY,
    UNDECIDED,
    UNMEASURED,
    UNTESTED,
    examine,
    examine_both,
    printed_cells,
)
from leakscope.experiments.papers.comparing import Column, Measured
from leakscope.experiments.papers.items import Check, Claim, item_files, read_item
from leakscope.experiments.papers.measures import Value
from leakscope.metrics.interval import Estimate

COLUMN = Column("", "")
CONTRADICTED = ("the table contradicts it", "as drop rises, the mean number of iterations")


@pytest.mark.parametrize("name", [name for name in item_files() if read_item(name).printed.rows])
def test_a_paper_s_claims_hold_on_its_own_numbers_but_for_those_it_contradicts(name: str) -> None:
    item = read_item(name)
    cells = printed_cells(item.printed, COLUMN)
    for claim in item.claims:
        found = examine(claim, cells, COLUMN)
        if found.word in (UNMEASURED, UNTESTED):  # a figure prints fewer places than it speaks of
            assert "figure" in name
            continue
        contradicted = any(word in claim.says for word in CONTRADICTED)
        assert (found.word == HOLDS) != contradicted, (claim.says, found.against)


def cell(value: float, low: float = math.nan, high: float = math.nan, **where: Any) -> Measured:
    return Measured(where, COLUMN, 20, {"mse": Value(Estimate(value, low, high, 20, 20))})


def check(**settings: Any) -> Claim:
    return Claim(says="it is so", checks=(Check(measure="mse", **settings),))


def test_a_pair_is_compared_where_all_other_axes_are_equal() -> None:
    cells = [cell(1, data="a", start="x"), cell(2, data="a", start="y"), cell(9, data="b", start="x")]
    found = examine(check(of={"start": "x"}, than={"start": "y"}, must_be="lower"), cells, COLUMN)
    assert found.word == HOLDS
    assert len(found.cases) == 1


@given(a=st.floats(0.1, 10), b=st.floats(0.1, 10), times=st.floats(0.1, 5), by=st.floats(-2, 2))
def test_times_and_by_move_what_is_compared_with(a: float, b: float, times: float, by: float) -> None:
    cells = [cell(a, start="x"), cell(b, start="y")]
    for must_be, holds in (("at_least", a >= times * b + by), ("lower", a < times * b + by)):
        claim = check(of={"start": "x"}, than={"start": "y"}, must_be=must_be, times=times, by=by)
        assert (examine(claim, cells, COLUMN).word == HOLDS) == holds


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_a_trend_is_that_of_every_two_neighbours_in_order(values: list[float]) -> None:
    cells = [cell(value, batch=n) for n, value in reversed(list(enumerate(values)))]
    found = examine(check(along="batch", must_be="not_rising"), cells, COLUMN)
    pairs = list(itertools.pairwise(values))
    assert len(found.cases) == len(pairs)
    assert [case.holds for case in found.cases] == [later <= earlier for earlier, later in pairs]


def test_intervals_that_meet_leave_a_failed_claim_undecided() -> None:
    meeting = [cell(0.5, 0.3, 0.7, start="x"), cell(0.4, 0.2, 0.6, start="y")]
    apart = [cell(0.9, 0.8, 0.95, start="x"), cell(0.4, 0.2, 0.6, start="y")]
    claim = check(of={"start": "x"}, than={"start": "y"}, must_be="lower")
    assert examine(claim, meeting, COLUMN).word == UNDECIDED
    assert examine(claim, apart, COLUMN).word == FAILS
    some = [*apart, cell(0.1, 0, 0.15, data="b", start="x"), cell(0.4, 0.2, 0.6, data="b", start="y")]
    assert examine(claim, some, COLUMN).word == PARTLY
    assert "1 of 2 cases hold, 1 for and 1 against it beyond the intervals" in examine(claim, some, COLUMN).told


def test_a_number_is_a_bound_for_every_cell_of_the_place() -> None:
    cells = [cell(0.0, sigma=1), cell(0.4, sigma=2), cell(math.nan, sigma=1)]
    assert examine(check(where={"sigma": 1}, must_be="at_most", value=0), cells, COLUMN).word == HOLDS
    assert examine(check(must_be="at_most", value=0), cells, COLUMN).word == UNDECIDED
    assert examine(check(where={"sigma": 3}, must_be="at_most", value=0), cells, COLUMN).word == UNMEASURED


def test_other_columns_do_not_speak() -> None:
    other = Measured({}, Column("", "knows"), 20, {"mse": Value(Estimate(5, 4, 6, 20, 20))})
    assert examine(check(must_be="at_most", value=1), [other, cell(0.0)], COLUMN).word == HOLDS


def test_what_cannot_be_tested_says_why() -> None:
    found = examine(Claim(says="it is so", cannot="nobody knows"), [], COLUMN)
    assert (found.word, found.told) == (UNTESTED, "not tested: nobody knows")


def test_a_check_has_one_form() -> None:
    with pytest.raises(InputError, match="needs one of than, value and along"):
        examine(check(must_be="lower", value=1, along="x"), [cell(1)], COLUMN)
    with pytest.raises(InputError, match="unknown relation 'smaller'"):
        examine(check(must_be="smaller", value=1), [cell(1)], COLUMN)


def test_success_is_told_by_convergence_and_by_content() -> None:
    rate = {"asr_convergence": Value(Estimate(0, 0, 0.2, 20, 20)), "asr_content": Value(Estimate(1, 0.8, 1, 20, 20))}
    claim = Claim(says="it succeeds", checks=(Check(measure="asr_convergence", must_be="higher", value=0.5),))
    found = examine_both(claim, [Measured({}, COLUMN, 20, rate)], COLUMN)
    assert [(each.rule, each.word) for each in found] == [("by convergence", FAILS), ("by content", HOLDS)]
    assert all(each.claim is claim for each in found)
