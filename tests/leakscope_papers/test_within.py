"""What shows that something is absent: the whole interval of a measure must lie within two bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate
from leakscope_papers.claims import FAILS, HOLDS, UNDECIDED, UNMEASURED, examine
from leakscope_papers.comparing import Column, Measured
from leakscope_papers.items import Check, Claim
from leakscope_papers.measures import Value

COLUMN = Column("", "")


def word(check: Check, **values: tuple[float, float, float]) -> str:
    found = {name: Value(Estimate(*each, 20, 20)) for name, each in values.items()}
    return examine(Claim(says="it is so", checks=(check,)), [Measured({"a": 1}, COLUMN, 20, found)], COLUMN).word


def alone(value: float) -> tuple[float, float, float]:
    return value, math.nan, math.nan


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.05, 0.9))
def test_the_whole_interval_holds_is_against_it_or_leaves_it_undecided(a: float, b: float, most: float) -> None:
    low, high = sorted((a, b))
    middle, check = (low + high) / 2, Check(measure="r", must_be="within", value=most)
    inside = all(-most <= end <= most for end in (low, high))
    outside = (low > most and high > most) or (low < -most and high < -most)
    wanted = HOLDS if inside else FAILS if outside else UNDECIDED
    assert word(check, r=(middle, low, high)) == wanted
    assert word(check, r=alone(middle), r_low=alone(low), r_high=alone(high)) == wanted


def test_a_number_without_an_interval_is_not_enough() -> None:
    assert word(Check(measure="r", must_be="within", value=0.3), r=alone(0.0)) == UNMEASURED


@pytest.mark.parametrize("wrong", [{"value": 0.0}, {"value": -1.0}, {"than": {"a": 1}}])
def test_it_needs_a_value_above_0(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="value above 0"):
        word(Check(measure="r", must_be="within", **wrong), r=alone(0.0))
