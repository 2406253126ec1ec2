"""The picture of an update: sign is colour, size is strength, nothing large is lost."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from leakscope.report.pictures import ABOVE, BELOW, FIELD, draw_layers


def colours(png: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def test_sign_is_colour_and_zero_is_transparent() -> None:
    [layer] = draw_layers({"w": torch.tensor([[-2.0, 0.0, 2.0]])})
    below, zero, above = colours(layer.png)[0]
    assert tuple(below) == (*BELOW, 255)
    assert tuple(above) == (*ABOVE, 255)
    assert zero[3] == 0


def test_one_huge_value_does_not_wash_out_the_rest() -> None:
    values = torch.ones(10, 50)
    values[3, 7] = 1e9
    [layer] = draw_layers({"w": values})
    assert (colours(layer.png)[..., 3] == 255).all()
    assert layer.largest == 1e9


def test_each_layer_has_its_own_scale() -> None:
    small, large = draw_layers({"a": torch.full((4,), 1e-9), "b": torch.full((4,), 1e9)})
    assert np.array_equal(colours(small.png), colours(large.png))


def test_a_lone_large_value_in_a_large_layer_is_seen() -> None:
    values = torch.zeros(500, 3000)
    values[250, 1500] = -1.0
    [layer] = draw_layers({"w": values})
    field = colours(layer.png)
    assert field.shape[0] <= FIELD[0]
    assert field.shape[1] <= FIELD[1]
    assert (field[..., 3] > 0).sum() == 1
    row, column = np.argwhere(field[..., 3] > 0)[0]
    assert abs(row / field.shape[0] - 0.5) < 0.05
    assert abs(column / field.shape[1] - 0.5) < 0.05


@pytest.mark.parametrize(
    ("shape", "size", "drawn"),
    [
        ((12, 1, 5, 5), "12 × 1 × 5 × 5 = 300 values", (12, 25)),
        ((300, 10), "300 × 10 = 3,000 values", (10, 300)),
        ((7,), "7 values", (1, 7)),
        ((1,), "1 value", (1, 1)),
        ((), "1 value", (1, 1)),
    ],
)
def test_layers_are_laid_out_as_their_weights(shape: tuple[int, ...], size: str, drawn: tuple[int, int]) -> None:
    [layer] = draw_layers({"w": torch.rand(shape)})
    assert layer.size == size
    assert colours(layer.png).shape[:2] == drawn


def test_what_is_not_finite_is_drawn_all_the_same() -> None:
    [layer] = draw_layers({"w": torch.tensor([float("nan"), float("inf"), float("-inf"), 1.0])})
    alpha = colours(layer.png)[0, :, 3]
    assert alpha.tolist() == [0, 255, 255, 255]
    [dead] = draw_layers({"w": torch.zeros(5)})
    assert (colours(dead.png)[..., 3] == 0).all()
