"""What cannot be shown is refused when it is made, by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.report import Exact, Guess, Page, Pair, Strength, Tile

MakePage = Callable[..., Page]
MakeTile = Callable[..., Tile]


@pytest.mark.parametrize("shape", [(), (2, 8, 8), (1, 1, 8, 8), (3, 0, 8)])
def test_a_picture_has_one_or_three_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"Pair.truth .*{re.escape(str(shape))}"):
        Pair(truth=torch.zeros(shape), recovered=torch.zeros(shape), label="", mse=0.0)


def test_what_was_recovered_has_the_shape_of_the_truth(make_tile: MakeTile) -> None:
    with pytest.raises(InputError, match=r"Pair.recovered .* \(1, 8, 8\), got \(8, 8\)"):
        Pair(truth=torch.zeros(1, 8, 8), recovered=torch.zeros(8, 8), label="", mse=0.0)
    guess = Guess(name="class mean", picture=torch.zeros(9), mse=0.0, ssim=None)
    with pytest.raises(InputError, match=r"Guess.picture .*class mean"):
        make_tile(torch.zeros(1, 8, 8), baselines=(guess,))


def test_a_film_has_a_number_for_each_frame_and_runs_forward(make_tile: MakeTile) -> None:
    tile = make_tile(torch.zeros(1, 8, 8), frames=3)
    with pytest.raises(InputError, match=r"Tile.frames_at .*got 2"):
        dataclasses.replace(tile, frames_at=(0, 1))
    with pytest.raises(InputError, match=r"frames_at .*got \(0, 5, 4\)"):
        dataclasses.replace(tile, frames_at=(0, 5, 4))
    with pytest.raises(InputError, match=r"Tile.trace_at .*got 1"):
        dataclasses.replace(tile, trace_at=(0,))
    with pytest.raises(InputError, match=r"Tile.courses\['alpha'\] .*got 1"):
        dataclasses.replace(tile, courses={"alpha": (0.5,)})
    with pytest.raises(InputError, match=r"Tile.frames .* \(1, 8, 8\)"):
        dataclasses.replace(tile, frames=torch.zeros(3, 8, 8))
    with pytest.raises(InputError, match=r"Tile.frames .* \(1, 8, 8\)"):
        dataclasses.replace(tile, frames=torch.zeros(0, 1, 8, 8), frames_at=())


def test_empty_sections_are_left_out_not_empty(make_page: MakePage) -> None:
    [strength] = make_page().strengths
    fading = strength.fadings[0]
    with pytest.raises(InputError, match=r"Page.exact=None"):
        Exact(note="", pairs=())
    with pytest.raises(InputError, match=r"Page.strengths"):
        Strength(axis="sigma", note="", fadings=())
    with pytest.raises(InputError, match=r"Strength.fadings"):
        dataclasses.replace(fading, levels=())
    with pytest.raises(InputError, match=r"Fading.labels .* 3 .* got 1"):
        dataclasses.replace(fading, labels=("one",))
    with pytest.raises(InputError, match=r"Level.pictures .*strength 0"):
        dataclasses.replace(fading, truths=fading.truths[:2], labels=fading.labels[:2])
    with pytest.raises(InputError, match=r"'sigma' .* same strengths"):
        dataclasses.replace(strength, fadings=(fading, dataclasses.replace(fading, levels=fading.levels[1:])))
