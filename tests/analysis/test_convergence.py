"""The image MSE along snapshots, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from leakscope.analysis.convergence import image_curve, image_curves
from leakscope.core.errors import InputError


def test_image_curve_is_the_mse_of_every_snapshot_under_the_final_pairing() -> None:
    truth = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    guess = torch.rand(5, 2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    found = image_curve(truth, guess, torch.tensor([1, 0]))
    by_hand = [float((shot.flip(0) - truth).square().mean()) for shot in guess]
    assert found.tolist() == pytest.approx(by_hand, rel=1e-5)
    bytes_ = (guess * 255).round().to(torch.uint8)
    assert image_curve(truth, bytes_, torch.tensor([1, 0])).tolist() == pytest.approx(by_hand, abs=1e-3)
    with pytest.raises(InputError, match="snapshots must be"):
        image_curve(truth, guess[:, :1])


def test_image_curves_are_those_of_each_trial_over_its_scored_samples() -> None:
    draw = torch.Generator().manual_seed(0)
    truth, guess = torch.rand(2, 3, 1, 4, 4, generator=draw), torch.rand(2, 5, 3, 1, 4, 4, generator=draw)
    guess[1, 4] = math.nan  # not reached
    pairing = torch.tensor([[1, 2, 0], [1, 0, 2]])
    scored = torch.tensor([[True, True, True], [True, True, False]])
    found = image_curves(truth, guess, pairing, scored)
    assert found[0].tolist() == image_curve(truth[0], guess[0], pairing[0]).tolist()
    by_hand = [float((shot[[1, 0]] - truth[1, :2]).square().mean()) for shot in guess[1, :4]]
    assert found[1, :4].tolist() == pytest.approx(by_hand, rel=1e-5)
    assert found.isnan().nonzero().tolist() == [[1, 4]]
