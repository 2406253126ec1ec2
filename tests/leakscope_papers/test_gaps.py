"""Claims about gaps between cells, and between two measures of one cell."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.metrics.interval import Estimate
from leakscope_papers.claims import FAILS, HOLDS, PARTLY, examine
from leakscope_papers.comparing import Column, Measured
from leakscope_papers.differences import gaps_to
from leakscope_papers.items import Check, Claim
from leakscope_papers.measures import Value

COLUMN = Column("", "")


def cell(value: float, half: float = math.nan, **where: Any) -> Measured:
    return Measured(where, COLUMN, 20, {"psnr": Value(Estimate(value, value - half, value + half, 20, 20))})


def claim(**settings: Any) -> Claim:
    return Claim(says="it is so", checks=(Check(measure="psnr", **settings),))


@given(a=st.floats(-9, 9), b=st.floats(-9, 9), one=st.floats(0, 2), other=st.floats(0, 2))
def test_a_gap_has_the_interval_of_a_difference_of_independent_means(
    a: float, b: float, one: float, other: float
) -> None:
    cells = [cell(a, one, attack="x", n=1), cell(b, other, attack="y", n=1), cell(99, attack="y", n=2)]
    ((where, gap),) = gaps_to({"attack": "y"}, [(each.where, each.values["psnr"]) for each in cells])
    assert where == {"attack": "x", "n": 1}
    assert gap.estimate.value == a - b
    assert gap.estimate.high - gap.estimate.value == pytest.approx(math.sqrt(one**2 + other**2), abs=1e-9)


@given(a=st.floats(0, 1), b=st.floats(0, 1), down=st.floats(0, 0.5), up=st.floats(0, 0.5))
def test_a_cut_side_of_an_interval_is_used_on_its_own_side_of_the_gap(
    a: float, b: float, down: float, up: float
) -> None:
    one = {"psnr": Value(Estimate(a, a - down, a + up, 20, 20))}
    sure = {"psnr": Value(Estimate(b, b, b, 20, 20))}
    for first, second, ends in ((one, sure, (down, up)), (sure, one, (up, down))):
        known = [({"attack": "x"}, first["psnr"]), ({"attack": "y"}, second["psnr"])]
        ((_, gap),) = gaps_to({"attack": "y"}, known)
        own = gap.estimate
        assert (own.value - own.low, own.high - own.value) == pytest.approx(ends, abs=1e-9)


def test_a_claim_may_be_about_gaps() -> None:
    told = (("x", 1, 5.0), ("y", 1, 1.0), ("x", 2, 4.0), ("y", 2, 3.0))
    cells = [cell(value, 0.3, attack=attack, round=number) for attack, number, value in told]
    found = examine(claim(minus={"attack": "y"}, along="round", must_be="falling"), cells, COLUMN)
    assert (found.word, len(found.cases), found.cases[0].sure) == (HOLDS, 1, True)  # from 4 to 1, each +- 0.42
    assert examine(claim(minus={"attack": "y"}, must_be="higher", value=2), cells, COLUMN).word == PARTLY


def test_a_cell_may_be_held_against_another_measure_of_its_own() -> None:
    both = {name: Value(Estimate(v, v - 0.01, v + 0.01, 3, 3)) for name, v in (("psnr", 0.5), ("other", 0.4))}
    cells = [Measured({}, COLUMN, 3, both), cell(9)]
    for must_be, times, word in (("higher", 1, HOLDS), ("lower", 1, FAILS), ("lower", 2, HOLDS)):
        found = examine(claim(must_be=must_be, than_measure="other", times=times), cells, COLUMN)
        assert (found.word, len(found.cases)) == (word, 1)
