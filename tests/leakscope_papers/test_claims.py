"""Claims as tests: they hold on the paper's own numbers exactly where the paper does not contradict itself."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate
from leakscope_papers.claims import (
    FAILS,
    HOLDS,
    HOLDS_OPEN,
    PARTLY,
    SO_FAR,
    SO_FAR_OPEN,
    UNDECIDED,
    UNMEASURED,
    UNTESTED,
    examine,
    examine_both,
    printed_cells,
)
from leakscope_papers.comparing import Column, Measured
from leakscope_papers.items import Check, Claim, item_files, read_item
from leakscope_papers.measures import Value

COLUMN = Column("", "")
CONTRADICTED = ("the table contradicts it", "as drop rises, the mean number of iterations")


@pytest.mark.parametrize("name", [name for name in item_files() if read_item(name).printed.rows])
def test_a_paper_s_claims_hold_on_its_own_numbers_but_for_those_it_contradicts(name: str) -> None:
    item = read_item(name)
    cells = printed_cells(item.printed, COLUMN)
    known = {measure for cell in cells for measure in cell.values}
    for claim in item.claims:
        if claim.checks and not any(each.measure in known for each in claim.checks):
            continue  # tested by a measure of ours, of which nothing is printed
        found = examine(claim, cells, COLUMN)
        if found.word in (UNMEASURED, UNTESTED, SO_FAR):  # a figure prints fewer places than it speaks of
            assert "figure" in name or claim.cannot  # or what we cannot test says why
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
    found = examine(claim, some, COLUMN)
    assert found.word == PARTLY
    assert [(case.holds, case.sure) for case in found.cases] == [(False, True), (True, True)]
    assert "1 of 2 cases" in found.sentence


def test_a_claim_of_which_no_case_is_sure_does_not_simply_hold() -> None:
    claim = check(of={"start": "x"}, than={"start": "y"}, must_be="lower")
    meeting = [cell(0.4, 0.2, 0.6, start="x"), cell(0.5, 0.3, 0.7, start="y")]
    found = examine(claim, meeting, COLUMN)
    assert found.word == HOLDS_OPEN
    assert [(case.holds, case.sure) for case in found.cases] == [(True, False)]
    apart = [cell(0.1, 0, 0.15, data="b", start="x"), cell(0.4, 0.2, 0.6, data="b", start="y")]
    assert examine(claim, [*meeting, *apart], COLUMN).word == HOLDS  # one case is sure, none is against it
    part = Claim(says="", checks=(*claim.checks, Check(measure="psnr", must_be="lower", value=1)))
    assert examine(part, meeting, COLUMN).word == SO_FAR_OPEN


@pytest.mark.parametrize(("must_be", "word"), [("at_most", HOLDS), ("at_least", HOLDS), ("lower", UNDECIDED)])
def test_a_value_that_may_equal_its_bound_and_does_needs_no_certainty(must_be: str, word: str) -> None:
    found = examine(check(must_be=must_be, value=0), [cell(0.0, 0.0, 0.16)], COLUMN)
    assert found.word == word
    assert found.cases[0].even == (word == HOLDS)
    beside = examine(check(must_be="at_most", value=0.1), [cell(0.0, 0.0, 0.16)], COLUMN)
    assert beside.word == HOLDS_OPEN


@given(low=st.floats(20, 30), width=st.floats(0, 6))
def test_between_two_bounds_is_sure_when_the_whole_interval_is(low: float, width: float) -> None:
    claim = Claim(
        says="it is about 25",
        checks=(Check(measure="mse", must_be="at_least", value=22), Check(measure="mse", must_be="at_most", value=28)),
    )
    high, middle = low + width, low + width / 2
    found = examine(claim, [cell(middle, low, high)], COLUMN)
    assert len(found.cases) == 1
    assert found.cases[0].holds == (22 <= middle <= 28)
    if found.cases[0].holds and middle not in (22, 28):
        assert found.word == (HOLDS if low > 22 and high < 28 else HOLDS_OPEN)


def test_pictures_over_different_attacks_are_not_compared() -> None:
    def over(value: float, said: str, start: str) -> Measured:
        estimate = Estimate(value, value - 0.01, value + 0.01, 20, 20)
        return Measured(
            {"start": start}, COLUMN, 20, {"mse": Value(estimate, said), "iterations_mean": Value(estimate, said)}
        )

    claim = check(of={"start": "x"}, than={"start": "y"}, must_be="lower")
    few, none, every = (
        "3 of 20 trials that converged",
        "everything attacked, as none converged",
        "20 of 20 trials that converged",
    )
    for said in (few, none, every):
        found = examine(claim, [over(0.1, few, "x"), over(0.9, said, "y")], COLUMN)
        assert (found.word, found.unseen, found.unlike) == (UNMEASURED, 0, 1)
        assert "different attacks" in found.sentence
    whole = examine(claim, [over(0.1, every, "x"), over(0.9, none, "y")], COLUMN)
    assert (whole.word, whole.unlike) == (HOLDS, 0)
    bound = examine(check(must_be="lower", value=1), [over(0.1, few, "x")], COLUMN)
    assert bound.word == HOLDS  # a number of a cell may be held against a bound
    steps = Claim(says="", checks=(replace(claim.checks[0], measure="iterations_mean"),))
    assert examine(steps, [over(0.1, few, "x"), over(0.9, every, "y")], COLUMN).word == HOLDS  # always over successes


def test_claims_on_pictures_are_over_everything_attacked() -> None:
    for name in item_files():
        for claim in read_item(name).claims:
            compared = [each for each in claim.checks if each.along or each.than is not None]
            assert not {each.measure for each in compared} & {"ssim", "mse"}, (name, claim.says)


def test_a_number_is_a_bound_for_every_cell_of_the_place() -> None:
    cells = [cell(0.0, sigma=1), cell(0.4, sigma=2), cell(math.nan, sigma=1)]
    assert examine(check(where={"sigma": 1}, must_be="at_most", value=0), cells, COLUMN).word == HOLDS
    without = examine(check(must_be="at_most", value=0), cells, COLUMN)
    assert without.word == PARTLY  # a largest value has no interval: what was seen was seen
    assert [(case.holds, case.bounded) for case in without.cases] == [(True, False), (False, False)]
    assert without.unseen == 1
    assert examine(check(where={"sigma": 3}, must_be="at_most", value=0), cells, COLUMN).word == UNMEASURED


def test_other_columns_do_not_speak() -> None:
    other = Measured({}, Column("", "knows"), 20, {"mse": Value(Estimate(5, 4, 6, 20, 20))})
    assert examine(check(must_be="at_most", value=1), [other, cell(0.0)], COLUMN).word == HOLDS


def test_what_cannot_be_tested_says_why() -> None:
    claim = Claim(says="it is so", cannot="nobody knows")
    found = examine(claim, [], COLUMN)
    assert found.word == UNTESTED
    assert claim.cannot in found.sentence


def test_a_check_has_one_form() -> None:
    with pytest.raises(InputError, match="than, value"):
        examine(check(must_be="lower", value=1, along="x"), [cell(1)], COLUMN)
    with pytest.raises(InputError, match="unknown relation 'smaller'"):
        examine(check(must_be="smaller", value=1), [cell(1)], COLUMN)


def test_success_is_told_by_convergence_and_by_content() -> None:
    rate = {"asr_convergence": Value(Estimate(0, 0, 0.2, 20, 20)), "asr_content": Value(Estimate(1, 0.8, 1, 20, 20))}
    claim = Claim(says="it succeeds", checks=(Check(measure="asr_convergence", must_be="higher", value=0.5),))
    found = examine_both(claim, [Measured({}, COLUMN, 20, rate)], COLUMN)
    assert [(each.rule, each.word) for each in found] == [("by convergence", FAILS), ("by content", HOLDS)]
    assert all(each.claim is claim for each in found)


def test_two_bounds_of_one_measure_are_one_case() -> None:
    claim = Claim(
        says="it stays between 25 and 27",
        checks=(
            Check(measure="mse", must_be="at_least", value=25),
            Check(measure="mse", must_be="at_most", value=27),
        ),
    )
    found = examine(claim, [cell(41, 38, 44, batch=1), cell(26, 25.5, 26.5, batch=2)], COLUMN)
    assert (found.word, len(found.cases)) == (PARTLY, 2)
    assert found.against == ("batch 1: 41 against 27",)
    assert examine(claim, [cell(41, 38, 44, batch=1)], COLUMN).word == FAILS


def test_axes_that_never_vary_are_not_named() -> None:
    cells = [cell(3, 2, 4, data="a", batch=1), cell(5, 4.5, 6, data="a", batch=2)]
    (line,) = examine(check(along="batch", must_be="falling"), cells, COLUMN).against
    assert re.findall(r"\d+", line) == ["2", "5", "3", "1"]  # at batch 2, ours, the other, at batch 1
    assert "data" not in line


def test_what_never_got_a_number_is_counted_and_not_called_a_success() -> None:
    cells = [cell(5, 4, 6, start="x", size=32), cell(9, 8, 10, start="y", size=32)]
    lost = [cell(5, 4, 6, start="x", size=64), cell(math.nan, start="y", size=64)]
    claim = check(of={"start": "x"}, than={"start": "y"}, must_be="lower")
    found = examine(claim, cells + lost, COLUMN)
    assert (found.word, found.unseen) == (HOLDS, 1)
    assert "1 more" in found.sentence
    nothing = examine(claim, lost, COLUMN)
    assert (nothing.word, nothing.unseen) == (UNMEASURED, 1)


def test_a_claim_measured_in_part_says_so() -> None:
    claim = Claim(
        says="it falls, and is low at 10",
        checks=(
            Check(measure="mse", along="steps", must_be="falling"),
            Check(measure="mse", where={"steps": 10}, must_be="at_most", value=1),
        ),
    )
    found = examine(claim, [cell(3, 2.9, 3.1, steps=1), cell(2, 1.9, 2.1, steps=3)], COLUMN)
    assert (found.word, found.whole) == (SO_FAR, False)


def test_success_without_a_content_is_told_by_convergence_alone() -> None:
    claim = Claim(says="it succeeds", checks=(Check(measure="asr_convergence", must_be="higher", value=0.5),))
    rate = {"asr_convergence": Value(Estimate(0, 0, 0.2, 20, 20))}
    (found,) = examine_both(claim, [Measured({}, COLUMN, 20, rate)], COLUMN)
    assert (found.rule, found.word) == ("by convergence", FAILS)


def test_a_likely_reason_is_said_where_a_claim_fails_alone() -> None:
    claim = Claim(says="it is low", likely="nobody looked", checks=(Check(measure="mse", must_be="lower", value=1),))
    assert examine(claim, [cell(5, 4, 6)], COLUMN).sentence.endswith("nobody looked")
    assert "nobody" not in examine(claim, [cell(0.5, 0.4, 0.6)], COLUMN).sentence
    assert "nobody" not in examine(claim, [cell(1.1, 0.9, 1.3)], COLUMN).sentence  # undecided: nothing to explain yet
