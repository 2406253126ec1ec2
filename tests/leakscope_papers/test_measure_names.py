"""What a measure can be: every measure of an item is known, and a cut keeps what lies inside."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.metrics.interval import POSSIBLE, Estimate
from leakscope_papers.cell_measures import CHANGES, RECOVERED
from leakscope_papers.items import item_files, read_item
from leakscope_papers.measure_names import ANYTHING, BOUNDS, bounds_of, cut
from leakscope_papers.measures import MEASURES, RATES
from leakscope_papers.sme.analyses import COSINES, SHARES
from leakscope_papers.spn.curves import DISTRIBUTIONS

UNBOUNDED = {
    "privacy_score",
    "accuracy_score",
    "psnr_gain",
    "psnr_private_gain",
}  # means and differences of what may be anything


@given(
    name=st.sampled_from(sorted(BOUNDS)),
    value=st.floats(-5, 5),
    down=st.floats(0, 9),
    up=st.floats(0, 9),
    n=st.integers(2, 9),
)
def test_a_cut_takes_only_what_cannot_be(name: str, value: float, down: float, up: float, n: int) -> None:
    least, greatest = bounds_of(name)
    if not least <= value <= greatest:
        return
    whole = Estimate(value, value - down, value + up, n, n)
    kept = cut(name, whole)
    assert kept.low <= value <= kept.high
    assert (kept.value, kept.n, kept.trials) == (value, n, n)
    for point in (value - down, value + up, least, greatest):
        possible = least <= point <= greatest
        assert (kept.low <= point <= kept.high) == (possible and whole.low <= point <= whole.high)


def test_no_interval_stays_none() -> None:
    alone = cut("mse", Estimate(0.5, math.nan, math.nan, 1, 1))
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


@pytest.mark.parametrize("name", item_files())
def test_every_measure_of_an_item_has_its_bounds(name: str) -> None:
    unknown = {measure for measure in read_item(name).measures if bounds_of(measure) == ANYTHING}
    assert unknown <= UNBOUNDED
    curves = {plot.curve for plot in read_item(name).plots if plot.curve}
    assert {curve for curve in curves if bounds_of(curve) == ANYTHING} <= set(DISTRIBUTIONS)


def test_the_bounds_are_those_of_the_metrics_room() -> None:
    assert all(bounds_of(name) == (0.0, 1.0) for name in RATES)
    assert all(bounds_of(name) != ANYTHING for name in MEASURES)
    for name in ("mse", "ssim"):
        assert bounds_of(name) == bounds_of(f"{name}_all") == POSSIBLE[name]


def test_the_points_of_a_curve_are_bounded_by_the_names_that_programs_and_cells_keep() -> None:
    assert bounds_of(COSINES) == bounds_of("cosine_mean") == (-1.0, 1.0)
    assert {bounds_of(name) for name in (SHARES, RECOVERED, CHANGES)} == {(0.0, 1.0)}
    assert bounds_of("objective_error") == (0.0, 2.0)
