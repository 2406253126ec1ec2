"""The networks of the SPN paper against its tables 4, 5 and 6, and He's initialisation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from leakscope.core.errors import InputError
from leakscope.core.random import key
from leakscope.core.tree import count
from leakscope.models import INITS, MODELS, build, draw_parameters, find_shortfall
from leakscope.models.initialise import Kaiming, Torch

TABLE_4 = [(64, 3, 5, 5), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3), (256, 4096), (10, 256)]
TABLE_5 = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
TABLE_6 = [(12, 3, 5, 5), (12, 12, 5, 5), (12, 12, 5, 5), (12, 12, 5, 5), (10, 768)]


def layers(module: nn.Module, *kinds: type) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, kinds)]


def weights(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(layer.weight.shape) for layer in layers(module, nn.Conv2d, nn.Linear)]


def sizes(module: nn.Module, *kinds: type) -> list[tuple[int, ...]]:
    """Return the output shapes of these layers for one picture of 32x32, in the order they run."""
    seen: list[tuple[int, ...]] = []
    for layer in layers(module, *kinds):
        layer.register_forward_hook(lambda _, __, made: seen.append(tuple(made.shape[1:])))
    module(torch.empty(1, 3, 32, 32, device="meta"))
    return seen


def test_dlnet_is_table_6() -> None:
    with torch.device("meta"):
        module = MODELS["dlnet"](input_shape=(3, 32, 32), classes=10)
    assert weights(module) == TABLE_6
    convolutions = layers(module, nn.Conv2d)
    assert [(c.padding, c.stride) for c in convolutions] == [((2, 2), (s, s)) for s in (2, 2, 1, 1)]
    assert sizes(module, nn.Conv2d) == [(12, 16, 16), (12, 8, 8), (12, 8, 8), (12, 8, 8)]
    assert len(layers(module, nn.Sigmoid)) == 4


def test_alexnet_is_table_4() -> None:
    with torch.device("meta"):
        module = MODELS["alexnet"]()
    assert weights(module) == TABLE_4
    assert [c.padding[0] for c in layers(module, nn.Conv2d)] == [2, 2, 1, 1, 1]
    assert [s[1] for s in sizes(module, nn.Conv2d, nn.MaxPool2d)] == [32, 16, 16, 8, 8, 8, 8, 4]


def test_vgg_is_table_5_with_a_hidden_layer_as_wide_as_what_reaches_it() -> None:
    with torch.device("meta"):
        module = MODELS["vgg16"]()
    convolutions = layers(module, nn.Conv2d)
    assert [c.out_channels for c in convolutions] == TABLE_5
    assert {(c.kernel_size, c.padding) for c in convolutions} == {((3, 3), (1, 1))}
    assert [n.num_channels for n in layers(module, nn.GroupNorm)] == TABLE_5
    assert [s[1] for s in sizes(module, nn.Conv2d)] == [32] * 2 + [16] * 2 + [8] * 9
    assert weights(module)[-2:] == [(256, 512 * 4 * 4), (10, 256)]


def test_vgg_with_every_pool_is_the_one_of_its_authors() -> None:
    with torch.device("meta"):
        module = MODELS["vgg16"](pooled=(1, 2, 3, 4, 5))
    assert [s[1] for s in sizes(module, nn.MaxPool2d)] == [16, 8, 4, 2, 1]
    assert weights(module)[-2] == (256, 512)


@pytest.mark.parametrize("name", ["alexnet", "vgg16"])
def test_they_give_logits_for_every_activation_channel_and_size(name: str) -> None:
    for activation, channels, size in itertools.product(("sigmoid", "tanh", "relu"), (1, 3), (28, 32)):
        with torch.device("meta"):
            module = MODELS[name](input_shape=(channels, size, size), classes=7, activation=activation)
            assert module(torch.empty(2, channels, size, size)).shape == (2, 7)


@pytest.mark.parametrize(("name", "extra"), [("alexnet", {}), ("vgg16", {"groups": 2})])
def test_small_ones_run_under_vmap_and_end_in_a_head_of_nonnegative_features(name: str, extra: dict) -> None:
    model = build(name, (1, 8, 8), 3, {"width": 2, "hidden": 4, **extra})
    assert find_shortfall(model) is None
    assert model.head is not None
    assert (model.head.weight, model.head.nonnegative) == ("head.weight", True)


def test_every_setting_changes_the_network_and_wrong_ones_are_refused() -> None:
    with torch.device("meta"):
        for name, setting in (("alexnet", {"width": 8}), ("alexnet", {"hidden": 9}), ("vgg16", {"groups": 8})):
            assert str(MODELS[name](**setting)) != str(MODELS[name]())
    for settings, message in (
        ({"pooled": (1, 6)}, "pooled .*1 to 5"),
        ({"pooled": (1, 1)}, "pooled must be"),
        ({"groups": 5}, "width .*got 64"),
    ):
        with pytest.raises(InputError, match=message):
            build("vgg16", (3, 32, 32), 10, settings)
    with pytest.raises(InputError, match=r"alexnet .*8x8"):
        build("alexnet", (3, 7, 9))


def test_kaiming_has_the_variance_of_he_and_leaves_biases_and_norms() -> None:
    model = build("vgg16", (1, 8, 8), 3, {"width": 8, "groups": 4, "hidden": 64})
    keys = key(range(30))
    drawn, usual = draw_parameters(model, INITS["kaiming"](), keys), draw_parameters(model, Torch(), keys)
    assert INITS["kaiming"]() == Kaiming()
    for name, value in drawn.items():
        fan = math.prod(value.shape[2:])
        if name.endswith("weight") and value.ndim > 2:
            bound = math.sqrt(6 / fan)
            assert 0.98 * bound < value.abs().max() <= bound
            assert abs(value.var().item() * fan / 2 - 1) < 6 * math.sqrt(0.8 / value.numel())
        else:
            assert torch.equal(value, usual[name])
    assert count(drawn) == 30 * count(model.parameters)
