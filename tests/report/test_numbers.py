"""Numbers are read back as what they were, up to the digits shown."""

from __future__ import annotations

import math
import unicodedata

from hypothesis import assume, given
from hypothesis import strategies as st

from leakscope.metrics.interval import Estimate
from leakscope.report.numbers import number, number_interval, percent, percent_interval


def read(text: str) -> float:
    """Return the number that a reader sees."""
    text = text.replace(",", "")
    if "10" in text and any(unicodedata.category(c) == "No" for c in text):
        mantissa, _, power = text.rpartition("10")
        exponent = "".join("-" if c == "⁻" else str(unicodedata.digit(c)) for c in power)
        return float(mantissa.removesuffix(" × ") or 1) * 10.0 ** int(exponent)
    return float(text)


@given(st.floats(-1e12, 1e12).filter(lambda v: v == 0 or abs(v) > 1e-200))
def test_number_has_three_digits_or_four_places(value: float) -> None:
    assert math.isclose(read(number(value)), value, rel_tol=0.0051, abs_tol=0) or (
        abs(value) >= 1e-3 and abs(read(number(value)) - value) <= 0.5001e-4
    )


@given(st.floats(0, 1))
def test_percent_is_right_to_a_tenth_and_extremes_are_never_rounded_to(share: float) -> None:
    shown = percent(share)
    assert (shown == "100 %") == (share == 1)
    assert (shown == "0 %") == (share == 0)
    assume(shown[0].isdigit())
    assert abs(float(shown.removesuffix(" %")) - 100 * share) <= 0.05001


def test_intervals() -> None:
    assert percent_interval(Estimate(0.5, 0.123, 1.0, 4, 4)) == "12.3 to 100 %"
    assert number_interval(Estimate(2.0, 1.5, 2e6, 4, 4)) == "1.50 to 2 × 10⁶"
    undefined = Estimate(0.5, math.nan, math.nan, 1, 1)
    assert percent_interval(undefined) == number_interval(undefined) == ""
    assert percent(math.nan) == "n/a"
