"""The content rule: both clauses, what it refuses, and the papers' own calls."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics import DEFAULT_RULE, ContentRule, Scores, curve, score, whole_trials, wilson


def scores(mse: list[list[float]], ssim: list[list[float]]) -> Scores:
    error, likeness = torch.tensor(mse, dtype=torch.float64), torch.tensor(ssim, dtype=torch.float64)
    every = torch.ones_like(error, dtype=torch.bool)
    order = torch.arange(error.shape[1]).expand(error.shape)
    return Scores(error, -10 * error.log10(), likeness, None, None, order, every, every)


@given(mse=st.floats(0, 1), ssim=st.floats(-1, 1), most=st.floats(0, 1, width=32), least=st.floats(-1, 1, width=32))
def test_both_clauses_must_hold(mse: float, ssim: float, most: float, least: float) -> None:
    found = bool(ContentRule(mse=most, ssim=least).recovered(scores([[mse]], [[ssim]])))
    assert found == (mse <= most and ssim >= least)


def test_tables_have_the_mse_clause_alone() -> None:
    table = scores([[0.005, 0.02]], [[math.nan, math.nan]])
    assert DEFAULT_RULE.recovered(table).tolist() == [[True, False]]


def test_padding_and_nan_guesses_are_never_recovered() -> None:
    truth = torch.full((1, 3, 1, 12, 12), 0.5)
    guess = truth.clone()
    guess[0, 1] = torch.nan
    mask = torch.tensor([[True, True, False]])
    found = score(truth, torch.zeros(1, 3).long(), guess, None, mask=mask)
    assert int(DEFAULT_RULE.recovered(found).sum()) == 1
    assert float(found.mse[mask].max()) == 0.0


TABLE_7B = [
    ("LFW", [0.998, 0.9996, 0.9997, 0.9978, 0.9978, 0.9975, 0.998, 0.9981, 0.951, 0.004], 9),
    ("CIFAR-100", [0.959, 0.9994, 0.9981, 0.9981, 0.998, 0.9983, 0.9982, 0.9983, 0.895, 0.016], 9),
    ("CIFAR-10", [0.9985, 0.9996, 0.9996, 0.9997, 0.9992, 0.87, 0.523, 0.0017, 0.0019, 0.0018], 6),
    ("MNIST", [0.99, 0.9899, 0.9891, 0.9563, 0.9289, 0.8889, 0.8137, 0.425, 0.433, 0.43], 5),
]
TABLE_7B_MSE = {
    "LFW": [2.2e-4, 1.8e-4, 1.7e-4, 4.9e-4, 4.8e-4, 5.1e-4, 4.5e-4, 4.6e-4, 1.6e-3, 1.6e-1],
    "CIFAR-100": [5.4e-4, 3.3e-4, 3.7e-4, 3.7e-4, 3.8e-4, 3.5e-4, 3.6e-4, 3.7e-4, 1.5e-3, 1.2e-1],
    "CIFAR-10": [2.2e-4, 1.3e-4, 1.2e-4, 1.2e-4, 2.1e-4, 3.1e-3, 9.6e-3, 3.3e-1, 3.3e-1, 3.3e-1],
    "MNIST": [2.4e-4, 2.4e-4, 2.2e-4, 1.7e-3, 8.8e-3, 2.8e-2, 5.8e-2, 2.7e-1, 2.7e-1, 2.7e-1],
}


@pytest.mark.parametrize(("name", "ssim", "successes"), TABLE_7B, ids=[row[0] for row in TABLE_7B])
def test_the_default_splits_cpl_table_7b_where_its_authors_do(name: str, ssim: list[float], successes: int) -> None:
    """CPL framework, Table 7(b): ten rates of compression; ASR is 1 in the first columns and 0 in the rest."""
    found = DEFAULT_RULE.recovered(scores([TABLE_7B_MSE[name]], [ssim]))
    assert found[0].tolist() == [True] * successes + [False] * (10 - successes)


def texture(seed: int) -> Tensor:
    """A picture with low contrast: edges everywhere, and a flat grey guess is near in MSE."""
    return 0.5 + 0.05 * torch.randn(1, 1, 1, 32, 32, generator=torch.Generator().manual_seed(seed)).clamp(-2, 2)


def test_a_flat_guess_of_a_pale_picture_is_not_recovered() -> None:
    found = score(texture(0), torch.zeros(1, 1).long(), torch.full((1, 1, 1, 32, 32), 0.5), None)
    assert bool(ContentRule(ssim=-1).recovered(found))
    assert not bool(DEFAULT_RULE.recovered(found))


def test_whole_trials_need_every_scored_sample() -> None:
    recovered = torch.tensor([[True, True], [True, False], [True, False]])
    scored = torch.tensor([[True, True], [True, True], [True, False]])
    assert whole_trials(recovered, scored).tolist() == [True, False, True]


def test_the_curve_counts_and_falls_as_rules_get_stricter() -> None:
    some = scores([[0.001], [0.004], [0.02], [0.2]], [[0.95], [0.5], [0.8], [0.1]])
    by_mse = curve(some, [ContentRule(mse=m, ssim=-1) for m in (1, 0.1, 0.01, 0.002, 0)])
    by_ssim = curve(some, [ContentRule(mse=1, ssim=s) for s in (-1, 0.3, 0.6, 0.9)])
    assert [point.value for point in by_mse] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [point.value for point in by_ssim] == [1.0, 0.75, 0.5, 0.25]
    assert (by_mse[1].low, by_mse[1].high) == pytest.approx(wilson(0.75, 4))
    assert {point.n for point in by_mse} == {4}


@pytest.mark.parametrize("mse", [-0.1, 1.1, math.nan])
def test_a_threshold_outside_its_range_is_refused(mse: float) -> None:
    with pytest.raises(InputError, match=r"ContentRule\.mse must\b"):
        ContentRule(mse=mse)
    with pytest.raises(InputError, match=r"ContentRule\.ssim must\b"):
        ContentRule(ssim=mse * 20)
