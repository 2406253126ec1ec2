"""The one large picture that scikit-image brings along."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.data import SOURCES, load


def test_it_is_scikit_images_picture() -> None:
    from skimage import data as theirs

    data = load("camera")
    assert (data.size("train"), data.size("test"), data.classes) == (0, 1, 2)
    assert data.input_shape == SOURCES["camera"].shape == (1, 512, 512)
    assert torch.equal(data.pictures("test", 0)[0], torch.from_numpy(theirs.camera() / np.float32(255)).float())  # type: ignore[no-untyped-call]
    assert data.labels("test", 0) == 1


def test_without_scikit_image_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(InputError, match="pip install scikit-image") as caught:
        load("camera")
    assert "\n" not in str(caught.value)


def test_a_file_in_the_data_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "camera.npz", x_test=np.zeros((1, 4, 4), np.uint8), y_test=np.zeros(1, np.uint8))
    monkeypatch.setenv("LEAKSCOPE_DATA", str(tmp_path))
    assert load("camera").input_shape == (1, 4, 4)
