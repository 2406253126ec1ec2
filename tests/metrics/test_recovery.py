"""Recovery over a curve of thresholds, and the reason for the one that is chosen."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.metrics import ContentRule, curve, score
from leakscope.metrics.recovery import THRESHOLD, THRESHOLDS, recovery, recovery_curve

ERRORS = st.lists(st.lists(st.floats(0, 0.3) | st.just(math.nan), min_size=2, max_size=2), min_size=1, max_size=6)


def every(mse: Tensor) -> Tensor:
    return torch.ones(mse.shape, dtype=torch.bool)


@settings(deadline=None, max_examples=60)
@given(errors=ERRORS, threshold=st.sampled_from(THRESHOLDS))
def test_rates_are_plain_counts(errors: list[list[float]], threshold: float) -> None:
    mse = torch.tensor(errors, dtype=torch.float64)
    found = recovery(mse, every(mse), threshold=threshold)
    hits = [[value <= threshold for value in row] for row in errors]
    assert found.samples.value == pytest.approx(sum(map(sum, hits)) / (2 * len(hits)))
    assert found.trials.value == pytest.approx(sum(all(row) for row in hits) / len(hits))
    assert (found.samples.n, found.trials.n) == (2 * len(hits), len(hits))


@settings(deadline=None, max_examples=30)
@given(errors=ERRORS)
def test_the_curve_rises_and_whole_batches_are_rarer_than_samples(errors: list[list[float]]) -> None:
    mse = torch.tensor(errors, dtype=torch.float64)
    points = recovery_curve(mse, every(mse))
    assert [point.threshold for point in points] == sorted(THRESHOLDS)
    values = [point.samples.value for point in points]
    assert values == sorted(values)
    assert all(point.trials.value <= point.samples.value for point in points)


def test_it_is_the_content_rule_without_ssim() -> None:
    truth = torch.rand(8, 2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    guess = truth + torch.linspace(0, 0.4, 8)[:, None, None, None, None]
    labels = torch.zeros(8, 2, dtype=torch.int64)
    scores = score(truth, labels, guess, labels)
    rules = curve(scores, [ContentRule(mse=threshold, ssim=-1) for threshold in THRESHOLDS])
    assert [point.samples for point in recovery_curve(scores.mse, scores.scored)] == list(rules)


def test_padding_does_not_count() -> None:
    mse, scored = torch.tensor([[0.0, math.nan], [0.2, 0.0]]), torch.tensor([[True, False], [True, True]])
    found = recovery(mse, scored)
    assert found.samples.value == pytest.approx(2 / 3)
    assert found.trials.value == pytest.approx(1 / 2)


def test_a_mixture_of_two_digits_is_seldom_called_a_recovery(data_directory: Path) -> None:
    """The reason for the threshold: of 1,000 halves of two MNIST digits of one class about 1 % pass it, over 3 % pass 0.01."""
    data = load("mnist", data_directory)
    labels = data.labels("test", slice(None))
    generator = torch.Generator().manual_seed(0)
    places = [torch.where(labels == kind)[0] for kind in range(10)]
    pairs = torch.stack([place[torch.randperm(len(place), generator=generator)].reshape(-1, 2) for place in places])
    x = data.pictures("test", pairs.reshape(-1)).reshape(-1, 2, 784)
    mse = ((x[:, 0] - x[:, 1]) / 2).square().mean(1)[:, None]
    assert len(mse) == 1000
    assert 0.003 < recovery(mse, every(mse), threshold=THRESHOLD).samples.value < 0.02
    assert recovery(mse, every(mse), threshold=0.01).samples.value > 0.03


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan])
def test_what_makes_no_sense_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match=f"threshold .*got {threshold}"):
        recovery(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), threshold=threshold)
    with pytest.raises(InputError, match="T x N"):
        recovery(torch.zeros(2), torch.ones(2, dtype=torch.bool))
