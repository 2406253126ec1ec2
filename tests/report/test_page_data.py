"""What cannot be shown is refused when it is made, by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.core.types import Outcome
from leakscope.metrics import score, summarise
from leakscope.report import Exact, Page, Pair, Tile, row_of

MakePage = Callable[..., Page]
MakeTile = Callable[..., Tile]


@pytest.mark.parametrize("shape", [(), (2, 8, 8), (1, 1, 8, 8), (3, 0, 8)])
def test_a_picture_has_one_or_three_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InputError, match=re.escape(f"Pair.truth must be C x H x W with C 1 or 3, H x W, or F, got shape {shape}")
    ):
        Pair(truth=torch.zeros(shape), recovered=torch.zeros(shape), label="", mse=0.0)


def test_what_was_recovered_has_the_shape_of_the_truth() -> None:
    with pytest.raises(InputError, match=r"Pair.recovered must have the shape of the truth, \(1, 8, 8\), got \(8, 8\)"):
        Pair(truth=torch.zeros(1, 8, 8), recovered=torch.zeros(8, 8), label="", mse=0.0)


def test_a_film_has_a_number_for_each_frame_and_runs_forward(make_tile: MakeTile) -> None:
    tile = make_tile(torch.zeros(1, 8, 8), frames=3)
    with pytest.raises(InputError, match=r"Tile.frames_at must name 3 frames, got 2 numbers"):
        dataclasses.replace(tile, frames_at=(0, 1))
    with pytest.raises(InputError, match=r"Tile.frames_at must never fall, got \(0, 5, 4\)"):
        dataclasses.replace(tile, frames_at=(0, 5, 4))
    with pytest.raises(InputError, match=r"Tile.frames must be S x \(1, 8, 8\)"):
        dataclasses.replace(tile, frames=torch.zeros(3, 8, 8))
    with pytest.raises(InputError, match=r"Tile.frames must be S x \(1, 8, 8\)"):
        dataclasses.replace(tile, frames=torch.zeros(0, 1, 8, 8), frames_at=())


def test_empty_sections_are_left_out_not_empty(make_page: MakePage) -> None:
    noise = make_page().noise
    assert noise is not None
    with pytest.raises(InputError, match=r"Page.exact=None"):
        Exact(note="", pairs=())
    with pytest.raises(InputError, match=r"Page.noise=None"):
        dataclasses.replace(noise, levels=())
    with pytest.raises(InputError, match=r"NoiseSweep.labels must name 3 truths, got 1"):
        dataclasses.replace(noise, labels=("one",))
    with pytest.raises(InputError, match=r"NoiseLevel.pictures at sigma 0 must have the shape"):
        dataclasses.replace(noise, truths=noise.truths[:2], labels=noise.labels[:2])


def test_a_summary_is_a_row() -> None:
    truth = torch.rand(4, 1, 1, 16, 16, dtype=torch.float64)
    guess = truth.clone()
    guess[3] = 1 - truth[3]
    labels = torch.zeros(4, 1, dtype=torch.int64)
    scores = score(truth, labels, guess, labels)
    outcomes = torch.tensor([Outcome.CONVERGED] * 3 + [Outcome.EXHAUSTED])
    summary = summarise(scores, outcomes=outcomes, iterations=torch.tensor([10, 20, 30, 300]))
    row = row_of("dlg", summary)
    assert (row.attack, row.content, row.convergence, row.label) == (
        "dlg",
        summary.content,
        summary.convergence,
        summary.label,
    )
    assert (row.content.value, row.content.n) == (0.75, 4)
    assert row.steps is not None
    assert row.steps.value == 90
    assert row.mse == summary.means["mse"]
    assert row.outcomes["converged"] == 3
