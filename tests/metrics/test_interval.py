"""Intervals: against scipy where samples are independent, and by simulation where they are not."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from leakscope.metrics import estimate_mean, estimate_rate, wilson
from leakscope.metrics.interval import FEW


def everything(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


@settings(deadline=None, max_examples=60)
@given(counts=st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy(counts: tuple[int, int]) -> None:
    hits, n = counts
    reference = stats.binomtest(hits, n).proportion_ci(confidence_level=0.95, method="wilson")
    assert wilson(hits / n, n) == pytest.approx((reference.low, reference.high), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(hits=st.lists(st.booleans(), min_size=1, max_size=60))
def test_one_sample_a_trial_is_plain_wilson(hits: list[bool]) -> None:
    hit = torch.tensor(hits)[:, None]
    found = estimate_rate(hit, everything(hit))
    assert (found.n, found.trials) == (len(hits), len(hits))
    assert found.value == pytest.approx(sum(hits) / len(hits))
    assert (found.low, found.high) == pytest.approx(wilson(sum(hits) / len(hits), len(hits)), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=40))
def test_one_sample_a_trial_is_the_plain_t_interval(values: list[float]) -> None:
    column = torch.tensor(values, dtype=torch.float64)[:, None]
    found = estimate_mean(column, everything(column))
    reference = stats.ttest_1samp(values, 0.0) if len(set(values)) > 1 else None
    assert found.value == pytest.approx(sum(values) / len(values), abs=1e-9)
    if reference is not None:
        limits = reference.confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((limits.low, limits.high), rel=1e-6, abs=1e-6)


def test_samples_of_one_trial_count_by_trial_means() -> None:
    values = torch.randn(12, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = estimate_mean(values, everything(values))
    limits = stats.ttest_1samp(values.mean(1).numpy(), 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high))
    assert (found.n, found.trials) == (96, 12)


def test_repeating_a_sample_adds_no_certainty() -> None:
    """Eight copies of one fate are one try, however the interval is made."""
    hit = torch.rand(30, 1, generator=torch.Generator().manual_seed(1)) < 0.4
    one, eight = estimate_rate(hit, everything(hit)), estimate_rate(hit.repeat(1, 8), everything(hit.repeat(1, 8)))
    assert (eight.value, eight.low, eight.high) == pytest.approx((one.value, one.low, one.high))
    a, b = (
        estimate_mean(hit.double(), everything(hit)),
        estimate_mean(hit.double().repeat(1, 8), everything(hit.repeat(1, 8))),
    )
    assert (a.low, a.high) == pytest.approx((b.low, b.high))


def test_independent_samples_add_certainty_and_never_more_than_they_are() -> None:
    hit = torch.rand(40, 8, generator=torch.Generator().manual_seed(2)) < 0.4
    found = estimate_rate(hit, everything(hit))
    trial_low, trial_high = wilson(found.value, 40)
    sample_low, sample_high = wilson(found.value, 320)
    assert trial_low < found.low <= sample_low + 1e-9
    assert sample_high - 1e-9 <= found.high < trial_high


@pytest.mark.parametrize("always", [False, True])
def test_never_and_always_are_given_as_many_tries_as_trials(always: bool) -> None:
    hit = torch.full((10, 16), always)
    found = estimate_rate(hit, everything(hit))
    assert (found.low, found.high) == pytest.approx(wilson(float(always), 10))
    assert found.n == 160


def coverage(rate: float, correlation: float, *, trials: int = 15, samples: int = 8, repeats: int = 500) -> list[float]:
    """Return how often our interval, and Wilson's on all samples, hold the true rate when fates are beta-binomial."""
    spread = (1 - correlation) / correlation
    chance = stats.beta.rvs(rate * spread, (1 - rate) * spread, size=(repeats, trials, 1), random_state=3)
    hit = torch.rand(repeats, trials, samples, generator=torch.Generator().manual_seed(3)) < torch.tensor(chance)
    ours = naive = 0
    for one in hit:
        found = estimate_rate(one, everything(one))
        low, high = wilson(found.value, found.n)
        ours += found.low <= rate <= found.high
        naive += low <= rate <= high
    return [ours / repeats, naive / repeats]


@pytest.mark.parametrize(("rate", "correlation"), [(0.5, 0.4), (0.9, 0.2), (0.1, 0.8)])
def test_the_rate_interval_covers_where_counting_samples_does_not(rate: float, correlation: float) -> None:
    ours, naive = coverage(rate, correlation)
    assert ours >= 0.90
    assert naive <= 0.85


def test_the_rate_interval_covers_independent_samples_too() -> None:
    assert coverage(0.5, 1e-6)[0] >= 0.93


def test_masks_leave_samples_and_trials_out() -> None:
    values = torch.tensor([[1.0, 2.0, 99.0], [4.0, torch.nan, torch.nan], [7.0, 7.0, 7.0]], dtype=torch.float64)
    counted = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    found = estimate_mean(values, counted)
    mean = 7 / 3
    variance = 2 / 1 * ((3 - 2 * mean) ** 2 + (4 - mean) ** 2) / 9
    half = stats.t.ppf(0.975, 1) * math.sqrt(variance)
    assert (found.n, found.trials) == (3, 2)
    assert found.value == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))


def test_trials_of_unequal_size_weigh_by_their_samples() -> None:
    hit, counted = (
        torch.tensor([[True, True, True], [False, False, False]]),
        torch.tensor([[True] * 3, [True, False, False]]),
    )
    found = estimate_rate(hit, counted)
    assert found.value == 0.75
    assert (found.low, found.high) == pytest.approx(wilson(0.75, 16 / 10))


def test_nothing_and_one() -> None:
    none = torch.zeros(3, 2, dtype=torch.bool)
    for found in (estimate_rate(none, none), estimate_mean(none.double(), none)):
        assert (found.n, found.trials) == (0, 0)
        assert all(math.isnan(x) for x in (found.value, found.low, found.high))
    one = estimate_mean(torch.tensor([[2.0, 4.0]]), torch.ones(1, 2, dtype=torch.bool))
    assert (one.value, one.n, one.trials) == (3.0, 2, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    lone = estimate_rate(torch.tensor([[True, False]]), torch.ones(1, 2, dtype=torch.bool))
    assert (lone.low, lone.high) == pytest.approx(wilson(0.5, 1))


def test_an_interval_ends_where_a_metric_ends() -> None:
    values = torch.tensor([[0.0], [0.0], [0.9]])
    counted = torch.ones(3, 1, dtype=torch.bool)
    free, cut = estimate_mean(values, counted), estimate_mean(values, counted, within=(0.0, 1.0))
    assert free.low < 0
    assert free.high > 1
    assert (cut.value, cut.low, cut.high) == (free.value, 0.0, 1.0)
    assert math.isnan(estimate_mean(values[:1], counted[:1], within=(0.0, 1.0)).low)


@settings(deadline=None, max_examples=60)
@given(
    trials=st.integers(2, 12),
    samples=st.integers(1, 4),
    level=st.floats(0.0, 1.0),
    spread=st.sampled_from([0.0, 1e-12, 0.01]),
)
def test_few_trials_or_trials_that_agree_have_no_point_for_an_interval(
    trials: int, samples: int, level: float, spread: float
) -> None:
    """Of two clients with all their tokens read, the interval was 100 % to 100 %."""
    if trials >= FEW:
        spread = 0.0
    values = (level + spread * torch.arange(trials)[:, None].double()).clamp(0, 1).expand(trials, samples)
    found = estimate_mean(values, everything(values.bool()), within=(0.0, 1.0))
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low >= wilson(1.0, trials)[1] - wilson(1.0, trials)[0] - 1e-9
    free = estimate_mean(values, everything(values.bool()))
    assert trials >= FEW or math.isnan(free.low) or free.high - free.low > 1e-13


def test_trials_that_all_succeed_have_the_same_interval_as_a_mean_and_as_a_rate() -> None:
    for trials in (2, 3, 8, 40):
        ones = torch.ones(trials, 4, dtype=torch.bool)
        mean, rate = estimate_mean(ones.double(), ones, within=(0.0, 1.0)), estimate_rate(ones, ones)
        assert (mean.low, mean.high) == pytest.approx((rate.low, rate.high))
