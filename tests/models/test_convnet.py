"""ATS's ConvNet: the published shapes, any small picture, a second derivative."""

from __future__ import annotations

import itertools

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.core.tree import count
from leakscope.models import ACTIVATIONS, MODELS, build
from leakscope.models.structure import Dense


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_the_dense_layer_reads_2304_features(shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        module = MODELS["convnet"](input_shape=shape, classes=100)
        assert module.get_submodule("head").in_features == 2304
        assert module.eval()(torch.empty(2, *shape)).shape == (2, 100)
        filters = [layer.out_channels for layer in module if isinstance(layer, torch.nn.Conv2d)]
    assert filters == [64, 128, 128, 256, 256, 256, 256, 256]


def test_parameters_are_those_of_the_layers() -> None:
    sides = [3, 64, 128, 128, 256, 256, 256, 256, 256]
    expected = sum(9 * a * b + b + 2 * b for a, b in itertools.pairwise(sides)) + 2305 * 10
    assert count(build("convnet", (3, 32, 32), 10).parameters) == expected


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_and_an_oblong_picture(activation: str) -> None:
    model = build("convnet", (1, 9, 14), 4, {"activation": activation, "width": 2})
    assert model.head == Dense("head.weight", "head.bias", nonnegative=activation in ("relu", "sigmoid"))


def test_too_small_a_picture_is_refused() -> None:
    with pytest.raises(InputError, match="at least 9x9"):
        MODELS["convnet"](input_shape=(1, 8, 8), classes=4)
