"""Melis' inference as a picture: the class is inferred far above chance, and the picture is the mean of public pictures of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core import random
from leakscope.data import load
from leakscope_papers.cpl.melis import melis
from leakscope_papers.programs.rows import keeping

TINY: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [16]},
    "images": 30,
    "public": 8,
    "seeds": [3],
}


def test_the_class_is_inferred_and_the_picture_is_the_mean_of_public_ones(tmp_path: Path) -> None:
    with keeping(tmp_path, TINY, {}) as rows:
        melis(TINY, rows, lambda _: None, "cpu")
        numbers = rows.values("melis")
    right = torch.tensor([float(value or 0) for value in numbers["asr_label"]])
    assert right.mean() > 0.8
    data = load("digits")
    order = random.permutation(random.key(3), len(data.y_test))[:30].tolist()
    labels = data.labels("train", range(len(data.y_train)))
    for place, own in enumerate(order):
        if right[place]:
            label = int(data.labels("test", [own])[0])
            mean = data.pictures("train", (labels == label).nonzero()[:8, 0].tolist()).mean(0)
            error = (data.pictures("test", [own])[0] - mean).square().mean()
            assert numbers["mse_all"][place] == pytest.approx(float(error), rel=1e-4)
