"""Resizing against Pillow, and the laws of a weighted mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.data.resizing import resize

SIDES = st.integers(1, 40)


@pytest.mark.parametrize("side", [7, 14, 28, 40, 64, 128])
def test_agrees_with_pillow(side: int) -> None:
    from PIL import Image

    picture = load("fashion_mnist").pictures("test", 5)
    theirs = Image.fromarray(picture[0].numpy(), mode="F").resize((side, side), Image.Resampling.BILINEAR)
    assert_close(resize(picture, side)[0], torch.from_numpy(np.array(theirs)), rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(side=SIDES, height=SIDES, width=SIDES, level=st.floats(0, 1, width=32))
def test_a_flat_picture_stays_flat(side: int, height: int, width: int, level: float) -> None:
    made = resize(torch.full((2, 3, height, width), level), side)
    assert_close(made, torch.full((2, 3, side, side), level), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(side=SIDES, seed=st.integers(0, 1000))
def test_values_stay_between_the_least_and_the_greatest(side: int, seed: int) -> None:
    pictures = torch.rand(3, 1, 9, 13, generator=torch.Generator().manual_seed(seed))
    made = resize(pictures, side)
    assert bool((made >= pictures.amin((1, 2, 3), keepdim=True) - 1e-6).all())
    assert bool((made <= pictures.amax((1, 2, 3), keepdim=True) + 1e-6).all())


def test_halving_an_even_side_keeps_the_mean_and_a_picture_does_not_depend_on_its_neighbours() -> None:
    pictures = load("fashion_mnist").pictures("test", range(6))
    assert_close(resize(pictures, 14).mean((1, 2, 3)), pictures.mean((1, 2, 3)), rtol=0, atol=0.02)
    alone = torch.stack([resize(picture, 50) for picture in pictures])
    assert torch.equal(resize(pictures, 50), alone)
    assert torch.equal(resize(pictures[None], 50)[0], alone)


def test_the_same_side_and_an_empty_stack() -> None:
    pictures = torch.rand(2, 1, 8, 8)
    assert torch.equal(resize(pictures, 8), pictures)
    assert resize(pictures[:0], 5).shape == (0, 1, 5, 5)


@pytest.mark.parametrize(("shape", "side"), [((1, 8, 8), 0), ((1, 8, 8), 4096), ((8, 8), 4)])
def test_what_cannot_be_resized_is_refused(shape: tuple[int, ...], side: int) -> None:
    with pytest.raises(InputError, match="must be"):
        resize(torch.zeros(shape), side)


def test_a_data_set_hands_out_its_pictures_at_its_side() -> None:
    data = load("digits")
    large = replace(data, side=16)
    assert large.input_shape == (1, 16, 16)
    assert large.pictures("test", 3).shape == (1, 16, 16)
    assert torch.equal(large.pictures("test", [3, 1]), resize(data.pictures("test", [3, 1]), 16))
    assert np.shares_memory(large.x_test, data.x_test)
    with pytest.raises(InputError, match="only pictures"):
        replace(load("breast_cancer"), side=16)


def test_faces_of_128_load_and_shrink(data_directory: Path) -> None:
    large = load("lfw_128", data_directory)
    assert large.input_shape == (3, 128, 128)
    assert replace(large, side=32).pictures("test", range(4)).shape == (4, 3, 32, 32)
