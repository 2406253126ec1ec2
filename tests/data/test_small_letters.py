"""EMNIST's letters as FEMNIST shows them: dark on white, in the middle of the frame, near FEMNIST's mean and deviation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakscope.data import load
from leakscope.data.small_letters import SIDE, read_small_letters, shown_small
from leakscope.data.sources import SOURCES


def test_ink_is_dark_and_only_in_the_middle() -> None:
    full = np.full((2, 1, 28, 28), 255, np.uint8)
    made = shown_small(full)
    assert made.shape == full.shape
    inside = (28 - SIDE) // 2
    assert (made[..., inside : inside + SIDE, inside : inside + SIDE] == 0).all()
    made[..., inside : inside + SIDE, inside : inside + SIDE] = 255
    assert (made == 255).all()


def test_an_empty_frame_is_white_and_the_mean_of_ink_shrinks_with_the_area() -> None:
    assert (shown_small(np.zeros((1, 1, 28, 28), np.uint8)) == 255).all()
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (5, 1, 28, 28)).astype(np.uint8)
    ink = 1 - shown_small(pictures).mean() / 255
    assert ink == pytest.approx(pictures.mean() / 255 * (SIDE / 28) ** 2, rel=0.02)


def test_it_is_made_of_the_file_of_emnist(tmp_path: Path) -> None:
    x, y = np.zeros((3, 28, 28), np.uint8), np.arange(3)
    np.savez(tmp_path / "emnist_byclass.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    data = read_small_letters(tmp_path / "emnist_byclass.npz")
    assert data.name == "emnist_as_femnist"
    assert data.y_train.tolist() == [0, 1, 2]
    assert float(data.pictures("train", [0]).min()) == 1.0


def test_mean_and_deviation_are_nearly_those_of_femnist(data_directory: Path) -> None:
    data, said = load("emnist_as_femnist", data_directory), SOURCES["emnist_as_femnist"].statistics
    pixels = data.pictures("train", range(2000))
    assert float(pixels.mean()) == pytest.approx(said.mean[0], abs=0.02)
    assert float(pixels.std()) == pytest.approx(said.std[0], abs=0.02)
