"""The catalogue: shapes, sizes and settings of every network."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from leakscope.core.errors import InputError
from leakscope.core.tree import count
from leakscope.models import ACTIVATIONS, MODELS, build
from leakscope.models.lenet import POOLINGS

SIZES = (28, 32, 64, 128)
LENETS = ("lenet_dlg", "lenet_cpl")


def output_shape(name: str, channels: int, size: int, settings: dict[str, object]) -> tuple[int, ...]:
    """Shapes only: on the meta device nothing is computed, so every combination can be tried."""
    with torch.device("meta"):
        module = MODELS[name](input_shape=(channels, size, size), classes=7, **settings).eval()
        return tuple(module(torch.empty(2, channels, size, size)).shape)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LENETS)
def test_lenets_give_logits_for_every_activation_pooling_and_channel(name: str, size: int) -> None:
    for activation, pooling, channels in itertools.product(ACTIVATIONS, POOLINGS, (1, 3)):
        assert output_shape(name, channels, size, {"activation": activation, "pooling": pooling}) == (2, 7)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["mlp", "resnet20", "resnet20_dlg", "resnet20_cpl", "cnn_mnist", "cnn_cifar"])
def test_other_networks_give_logits_for_every_activation_and_channel(name: str, size: int) -> None:
    every = (
        list(ACTIVATIONS) if size == SIZES[0] else list(ACTIVATIONS)[:1]
    )  # an activation does not depend on the size
    for activation, channels in itertools.product(every, (1, 3)):
        assert output_shape(name, channels, size, {"activation": activation}) == (2, 7)


@pytest.mark.parametrize("size", SIZES)
def test_linear_gives_logits(size: int) -> None:
    assert output_shape("linear", 1, size, {}) == output_shape("linear", 3, size, {}) == (2, 7)


@pytest.mark.parametrize("name", LENETS)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(
    ("size", "features"), [(28, 588), (29, 768), (30, 768), (31, 768), (32, 768), (33, 972), (61, 3072)]
)
def test_lenet_features_follow_the_side_whatever_the_pooling(name: str, pooling: str, size: int, features: int) -> None:
    with torch.device("meta"):
        module = MODELS[name](input_shape=(3, size, size), classes=5, pooling=pooling)
        assert module.get_submodule("head").in_features == features
        assert module(torch.empty(1, 3, size, size)).shape == (1, 5)


def test_lenet_takes_images_that_are_not_square() -> None:
    assert build("lenet_dlg", (1, 30, 41), 3).parameters["head.weight"].shape == (3, 12 * 8 * 11)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("linear", (1, 28, 28), 10, 7850),
        ("mlp", (1, 28, 28), 10, 784 * 256 + 256 + 2570),
        ("lenet_dlg", (3, 32, 32), 100, 912 + 2 * 3612 + 76900),
        ("lenet_cpl", (3, 32, 32), 106, 912 + 3 * 3612 + 768 * 106 + 106),
        ("lenet_dlg", (1, 28, 28), 10, 312 + 2 * 3612 + 5890),
        ("resnet20", (3, 32, 32), 10, 272_474),
        ("cnn_mnist", (1, 28, 28), 62, 320 + 18_496 + 313_700 + 6262),
        ("cnn_cifar", (3, 32, 32), 100, 1792 + 73_856 + 8192 * 200 + 200 + 20_100),
    ],
)
def test_parameter_counts_are_the_papers(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    assert count(build(name, shape, classes).parameters) == expected


def test_dlnet_is_cpl_lenet_under_another_name() -> None:
    assert MODELS["dlnet"] is MODELS["lenet_cpl"]
    assert build("dlnet", (3, 32, 32)).name == "dlnet"


@pytest.mark.parametrize(("name", "strides"), [("lenet_dlg", (2, 2, 1)), ("lenet_cpl", (2, 2, 1, 1))])
def test_lenet_layers_are_the_papers(name: str, strides: tuple[int, ...]) -> None:
    module = MODELS[name]()
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert tuple(layer.stride[0] for layer in convolutions) == strides
    assert {(layer.out_channels, layer.kernel_size, layer.padding) for layer in convolutions} == {(12, (5, 5), (2, 2))}
    assert sum(isinstance(layer, nn.Sigmoid) for layer in module.modules()) == len(strides)


def test_dlg_resnet_has_sigmoids_and_no_strides() -> None:
    module = MODELS["resnet20_dlg"]()
    assert all(layer.stride == (1, 1) for layer in module.modules() if isinstance(layer, nn.Conv2d))
    assert not any(isinstance(layer, nn.ReLU) for layer in module.modules())
    assert sum(isinstance(layer, nn.Sigmoid) for layer in module.modules()) == 19
    assert sum(layer.stride == (2, 2) for layer in MODELS["resnet20"]().modules() if isinstance(layer, nn.Conv2d)) == 4


def test_every_setting_changes_the_network() -> None:
    base = str(MODELS["lenet_dlg"]())
    for setting in ({"activation": "tanh"}, {"pooling": "max"}, {"width": 5}, {"dropout": 0.3}, {"classes": 3}):
        assert str(MODELS["lenet_dlg"](**setting)) != base
    assert str(MODELS["mlp"](hidden=(3, 4))) != str(MODELS["mlp"]())
    assert str(MODELS["resnet20"](width=4)) != str(MODELS["resnet20"]())


def test_building_repeats_with_the_seed_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = build("lenet_dlg"), build("lenet_dlg"), build("lenet_dlg", seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one.parameters[name], same.parameters[name]) for name in one.parameters)
    assert not torch.equal(one.parameters["head.weight"], other.parameters["head.weight"])


def test_built_norm_layers_are_in_eval_mode() -> None:
    model = build("resnet20", (1, 8, 8), settings={"width": 2})
    _, buffers = model.apply(model.parameters, model.buffers, torch.rand(2, 1, 8, 8), torch.tensor(0))
    assert all(torch.equal(buffers[name], value) for name, value in model.buffers.items())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "settings", "message"),
    [
        ("lenet", (1, 28, 28), 10, {}, "model 'lenet'.*'lenet_"),
        ("lenet_dlg", (1, 28, 28), 10, {"widht": 3}, "lenet_dlg 'widht'.*'width'"),
        ("lenet_dlg", (1, 28, 28), 10, {"classes": 3}, "lenet_dlg 'classes'"),
        (
            "lenet_dlg",
            (1, 28, 28),
            10,
            {"activation": "sigmod"},
            "unknown activation 'sigmod'.*'sigmoid'",
        ),
        ("lenet_dlg", (1, 28, 28), 10, {"pooling": "mean"}, "unknown pooling 'mean'"),
        ("lenet_dlg", (1, 28, 28), 10, {"width": 0}, "width .*got 0"),
        ("lenet_dlg", (1, 28, 28), 10, {"width": "12"}, "width .*got '12'"),
        ("lenet_dlg", (1, 28, 28), 10, {"dropout": 1.0}, r"dropout .*got 1.0"),
        ("lenet_dlg", (784,), 10, {}, r"lenet_dlg .*input_shape .*got \(784,\)"),
        ("lenet_dlg", (1, 28, 0), 10, {}, "entry of input_shape .*got 0"),
        ("lenet_dlg", (), 10, {}, "input_shape .*ONE input"),
        ("lenet_dlg", (1, 28, 28), 0, {}, "classes .*got 0"),
        ("cnn_mnist", (1, 3, 9), 10, {}, "cnn_mnist .*4x4"),
        ("mlp", (5,), 10, {"hidden": ()}, "hidden must be"),
        ("mlp", (5,), 10, {"hidden": (3, True)}, "entry of hidden"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(
    name: str, shape: tuple[int, ...], classes: int, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build(name, shape, classes, settings)
    assert "\n" not in str(caught.value)


def test_the_readings_of_cpls_resnet_include_dlgs() -> None:
    settings = {"activation": "sigmoid", "norm": "batch", "pool": "global", "stride": 1, "width": 2}
    reading = build("resnet20_cpl", (3, 8, 8), 10, settings)
    dlg = build("resnet20_dlg", (3, 8, 8), 10, {"batch_statistics": True, "width": 2})
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    logits = [model.apply(model.parameters, model.buffers, images, torch.tensor(0))[0] for model in (reading, dlg)]
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("pool", "stride", "features"), [("global", 1, 8), ("four", 1, 32), ("none", 1, 512), ("none", 2, 32)]
)
def test_the_head_of_cpls_resnet_sees_what_the_pool_leaves(pool: str, stride: int, features: int) -> None:
    model = build("resnet20_cpl", (3, 8, 8), 10, {"pool": pool, "stride": stride, "norm": "none", "width": 2})
    assert model.parameters["head.weight"].shape == (10, features)
    assert not any("norm" in name for name in model.parameters)
