"""Scoring: one pairing for every number, whatever the guess holds."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.core.tree import take
from leakscope.metrics import arrange, clean, match, mse, psnr, score, ssim

MODULE = importlib.import_module("leakscope.metrics.scoring")


def pictures(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(seed: int, *shape: int) -> Tensor:
    return torch.randint(4, shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), samples=st.integers(1, 4))
def test_pairing_is_the_cheapest_in_mse_and_every_score_uses_it(seed: int, samples: int) -> None:
    truth, guess = pictures(seed, 3, samples, 1, 8, 8), pictures(seed + 1, 3, samples, 1, 8, 8)
    y, z = labels(seed, 3, samples), labels(seed + 1, 3, samples)
    found = score(truth, y, guess, z)
    assert found.label_correct is not None
    for t in range(3):
        orders = itertools.permutations(range(samples))
        best = min(orders, key=lambda order: float(mse(truth[t], guess[t, list(order)]).sum()))
        paired = guess[t, list(best)]
        assert found.pairing[t].tolist() == list(best)
        assert_close(found.mse[t], mse(truth[t], paired))
        assert_close(found.psnr[t], psnr(truth[t], paired))
        assert_close(found.ssim[t], ssim(truth[t], paired))
        assert found.label_correct[t].tolist() == (y[t] == z[t, list(best)]).tolist()


def test_scores_by_mse_pairing_even_where_another_pairing_has_better_ssim() -> None:
    """Two truths of one structure and unlike brightness; the guesses swap the structure and keep the brightness."""
    stripes = torch.zeros(1, 12, 12, dtype=torch.float64)
    stripes[..., ::2] = 0.1
    truth = torch.stack([stripes + 0.1, torch.full_like(stripes, 0.8)])[None]
    guess = torch.stack([stripes + 0.7, torch.full_like(stripes, 0.15)])[None]
    found = score(truth, torch.zeros(1, 2).long(), guess, None)
    assert found.pairing.tolist() == [[1, 0]]
    assert_close(found.ssim, ssim(truth, guess.flip(1)))
    assert float(found.ssim.mean()) < float(ssim(truth, guess).mean())


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), within=st.floats(0.01, 0.3))
def test_with_a_limit_as_many_pairs_as_possible_are_within_it(seed: int, within: float) -> None:
    truth, guess = pictures(seed, 2, 4, 2), pictures(seed + 1, 2, 4, 2)
    pairing = score(truth, labels(seed, 2, 4), guess, None, within=within).pairing
    for t in range(2):
        errors = [mse(truth[t], guess[t, list(order)]) for order in itertools.permutations(range(4))]
        best = min((-int((error <= within).sum()), float(error.sum())) for error in errors)
        paired = mse(truth[t], guess[t, pairing[t]])
        assert -int((paired <= within).sum()) == best[0]
        assert_close(paired.sum(), torch.tensor(best[1], dtype=torch.float64))


def test_a_bad_guess_does_not_displace_an_exact_one() -> None:
    truth, guess = torch.tensor([[[0.3], [0.6]]]), torch.tensor([[[0.3], [0.0]]])
    y = torch.zeros(1, 2).long()
    assert score(truth, y, guess, None).pairing.tolist() == [[1, 0]]
    assert score(truth, y, guess, None, within=0.01).pairing.tolist() == [[0, 1]]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_the_guesses_does_not_matter(seed: int) -> None:
    truth, guess = pictures(seed, 2, 4, 3, 8, 8), pictures(seed + 1, 2, 4, 3, 8, 8)
    y, z = labels(seed, 2, 4), labels(seed + 1, 2, 4)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    one, two = score(truth, y, guess, z), score(truth, y, guess[:, order], z[:, order])
    for name in ("mse", "psnr", "ssim", "label_correct", "label_overlap"):
        assert_close(getattr(one, name), getattr(two, name))
    assert torch.equal(order[two.pairing], one.pairing)


def test_perfect_guesses_in_another_order_are_perfect() -> None:
    truth, y = pictures(0, 5, 6, 1, 8, 8), labels(0, 5, 6)
    found = score(truth, y, truth.flip(1), y.flip(1))
    assert found.label_correct is not None
    assert found.label_overlap is not None
    assert bool((found.mse == 0).all() and found.label_correct.all() and (found.label_overlap == 1).all())
    assert bool(found.psnr.isinf().all())
    assert_close(found.ssim, torch.ones_like(found.ssim))
    assert torch.equal(arrange(truth.flip(1), found.pairing), truth)


def test_tables_have_no_ssim() -> None:
    truth, guess = pictures(0, 3, 2, 14), pictures(1, 3, 2, 14)
    found = score(truth, labels(0, 3, 2), guess, None)
    assert bool(found.ssim.isnan().all())
    assert_close(found.mse, mse(truth, arrange(guess, found.pairing), rank=1))
    assert found.label_correct is None
    assert found.label_overlap is None


def test_guesses_are_clamped_and_nan_is_mid_grey() -> None:
    wild = torch.tensor([-2.0, 0.25, 3.0, torch.nan, torch.inf, -torch.inf])
    assert clean(wild).tolist() == [0.0, 0.25, 1.0, 0.5, 1.0, 0.0]
    truth = pictures(0, 1, 1, 6)
    assert_close(
        score(truth, labels(0, 1, 1), wild.reshape(1, 1, 6), None).mse, mse(truth, clean(wild)[None, None], rank=1)
    )


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_diverged_guess_has_finite_scores_and_is_marked(samples: int, bad: float) -> None:
    truth, y = pictures(0, 2, samples, 1, 12, 12), labels(0, 2, samples)
    guess = truth.clone()
    guess[1, -1] = bad
    guess = guess.flip(1)
    found = score(truth, y, guess, y)
    assert bool(found.mse.isfinite().all() and found.ssim.isfinite().all())
    assert found.finite.tolist() == [[True] * samples, [True] * (samples - 1) + [False]]
    assert bool((found.mse[found.finite] == 0).all())


def test_one_sample_a_trial_needs_no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a trial of one was paired")

    monkeypatch.setattr(MODULE, "pair", refuse)
    assert score(pictures(0, 9, 1, 14), labels(0, 9, 1), pictures(1, 9, 1, 14), None).pairing.tolist() == [[0]] * 9


def test_padding_is_neither_paired_nor_scored() -> None:
    truth, y = pictures(0, 2, 4, 1, 8, 8), labels(0, 2, 4)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    guess = pictures(1, 2, 4, 1, 8, 8)
    guess[0, 3] = truth[0, 0]
    padded = truth.clone()
    padded[~mask] = torch.nan
    found = score(padded, y, guess, y, mask=mask)
    assert torch.equal(found.scored, mask)
    assert found.pairing[0, 3] == 3
    assert found.pairing[1].tolist() == [0, 1, 2, 3]
    for name in ("mse", "psnr", "ssim"):
        assert torch.equal(getattr(found, name).isnan(), ~mask)
    short = score(truth[:1, :3], y[:1, :3], guess[:1, :3], y[:1, :3])
    assert short.label_overlap is not None
    assert found.label_overlap is not None
    assert torch.equal(short.pairing, found.pairing[:1, :3])
    assert_close(short.mse, found.mse[:1, :3])
    assert_close(short.label_overlap, found.label_overlap[:1])


def test_trials_do_not_touch_each_other_and_scores_can_be_taken_apart() -> None:
    truth, guess, y = pictures(0, 5, 3, 3, 8, 8), pictures(1, 5, 3, 3, 8, 8), labels(0, 5, 3)
    together = score(truth, y, guess, y)
    alone = score(truth[2:3], y[2:3], guess[2:3], y[2:3])
    part = take(together, slice(2, 3))
    for name in ("mse", "psnr", "ssim", "label_correct", "label_overlap", "pairing", "scored", "finite"):
        assert_close(getattr(part, name), getattr(alone, name))
    assert part.trials == 1


def test_ssim_in_pieces_is_ssim(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, guess, y = pictures(0, 7, 1, 1, 12, 12), pictures(1, 7, 1, 1, 12, 12), labels(0, 7, 1)
    whole = score(truth, y, guess, None)
    monkeypatch.setattr(MODULE, "_SSIM_CHUNK", 300)
    assert_close(score(truth, y, guess, None).ssim, whole.ssim)


def test_inputs_are_untouched() -> None:
    truth, guess, y = pictures(0, 2, 3, 5), pictures(1, 2, 3, 5) * 3 - 1, labels(0, 2, 3)
    before = truth.clone(), guess.clone(), y.clone()
    score(truth, y, guess, y)
    assert all(torch.equal(a, b) for a, b in zip((truth, guess, y), before, strict=True))


GOOD: dict[str, Any] = {
    "truth_inputs": pictures(0, 2, 3, 5),
    "truth_labels": labels(0, 2, 3),
    "guess_inputs": pictures(1, 2, 3, 5),
    "guess_labels": labels(1, 2, 3),
    "mask": None,
}


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("truth_inputs", pictures(0, 2, 3), "T x N"),
        ("truth_labels", labels(0, 2, 2), "truth_labels"),
        ("guess_inputs", pictures(0, 2, 2, 5), "guess_inputs"),
        ("guess_labels", labels(0, 3, 2), "guess_labels"),
        ("mask", torch.tensor([[True] * 3, [False] * 3]), "mask"),
        ("truth_inputs", pictures(0, 2, 3, 5) * 4 - 2, r"\[0, 1\].*scaling"),
        ("truth_inputs", torch.full((2, 3, 5), torch.nan), r"\[0, 1\]"),
    ],
)
def test_what_cannot_be_scored_is_refused(field: str, value: Tensor, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        score(**{**GOOD, field: value})


def test_match_gives_permutations() -> None:
    found = match(pictures(0, 6, 5, 7), pictures(1, 6, 5, 7), torch.ones(6, 5, dtype=torch.bool))
    assert torch.equal(found.sort(1).values, torch.arange(5).expand(6, 5))
