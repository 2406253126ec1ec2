"""Re-identification against the reconstructions of other clients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics import reidentification


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def everything(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def test_copies_are_re_identified_and_noise_is_not() -> None:
    truth = draw(0, 60, 2, 1, 6, 6)
    copies = reidentification(truth, truth + 0.05 * draw(1, *truth.shape), everything(60, 2))
    assert (copies.tpr.value, copies.rank.value, copies.others) == (1.0, 0.0, 118)
    assert copies.null.value <= 0.05
    noise = reidentification(truth, draw(2, *truth.shape), everything(60, 2), fpr=0.1)
    assert noise.tpr.low <= 0.1 <= noise.tpr.high
    assert noise.null.low <= 0.1 <= noise.null.high
    assert noise.rank.low <= 0.5 <= noise.rank.high


def test_one_smooth_guess_for_everybody_scores_well_in_mse_and_identifies_nobody() -> None:
    truth = 0.5 + 0.02 * (draw(0, 50, 1, 1, 6, 6) - 0.5)
    guess = torch.full_like(truth, 0.5)
    assert float((truth - guess).square().mean()) < 1e-4  # 40 dB
    found = reidentification(truth, guess, everything(50, 1))
    assert found.tpr.value == 0.0
    assert found.rank.value == 1.0  # ties count against the attack


@pytest.mark.parametrize("fpr", [0.05, 0.3])
def test_agrees_with_loops(fpr: float) -> None:
    truth, scored = draw(0, 7, 3, 5), everything(7, 3)
    guess = truth + 0.8 * (draw(1, 7, 3, 5) - 0.5)
    scored[2, 1] = scored[5, 2] = False
    ranks, hits = [], []
    for t, n in scored.nonzero().tolist():
        own = float((truth[t, n] - guess[t, n]).norm())
        others = [float((truth[t, n] - guess[u, m]).norm()) for u, m in scored.nonzero().tolist() if u != t]
        near = sum(distance <= own for distance in others)
        ranks.append(near / len(others))
        hits.append(near <= int(fpr * len(others)))
    found = reidentification(truth, guess, scored, fpr=fpr)
    assert found.rank.value == pytest.approx(sum(ranks) / len(ranks))
    assert found.tpr.value == pytest.approx(sum(hits) / len(hits))
    assert (found.tpr.n, found.tpr.trials, found.others) == (19, 7, 16)


@pytest.mark.parametrize("fpr", [0.0, 1.0, -0.1])
def test_a_rate_outside_its_range_is_refused(fpr: float) -> None:
    with pytest.raises(InputError, match="fpr"):
        reidentification(draw(0, 3, 1, 4), draw(1, 3, 1, 4), everything(3, 1), fpr=fpr)


def test_one_trial_has_nobody_to_compare_with() -> None:
    with pytest.raises(InputError, match="2 trials"):
        reidentification(draw(0, 1, 2, 4), draw(1, 1, 2, 4), everything(1, 2))
