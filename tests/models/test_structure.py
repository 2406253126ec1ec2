"""Head and entry: found where the data prove them, None otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core.model import Dense
from leakscope.models import ACTIVATIONS, MODELS, KeyedDropout, build, from_module

HEAD = Dense("head.weight", "head.bias", nonnegative=True)


HEADS = {"resnet18": replace(HEAD, weight="fc.weight", bias="fc.bias")}
HEADS["resnet20_cpl"] = replace(HEAD, nonnegative=False)  # tanh
HEADS["vit_b16"] = Dense("heads.head.weight", "heads.head.bias", nonnegative=False)


LARGE = {"vit_b16", "resnet18", "vgg16"}
IMAGE_NETWORKS = sorted(set(MODELS) - {"linear", "mlp", "mlp_sme", "lenet_sme", "resnet8", "vit"} - LARGE)


@pytest.mark.parametrize(
    "name", [*IMAGE_NETWORKS, *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(LARGE))]
)
def test_image_networks_have_a_head_and_no_entry(name: str) -> None:
    model = build(name, (1, 16, 16), 4)
    assert model.head == HEADS.get(name, HEAD)
    assert model.entry is None


def test_dense_networks_have_both() -> None:
    one = build("linear", (5,), 3)
    assert one.head == Dense("head.weight", "head.bias", nonnegative=False)
    assert one.entry == Dense("head.weight", "head.bias", nonnegative=True)
    many = build("mlp", (1, 4, 4), 3)
    assert many.head == HEAD
    assert many.entry == Dense("dense1.weight", "dense1.bias", nonnegative=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["mlp", "lenet_dlg", "resnet20", "cnn_mnist"])
def test_head_is_nonnegative_only_after_sigmoid_and_relu(name: str, activation: str) -> None:
    head = build(name, (1, 8, 8), 3, {"activation": activation}).head
    assert head is not None
    assert head.nonnegative == (activation in ("sigmoid", "relu"))


def test_head_stays_nonnegative_through_pooling_and_dropout() -> None:
    for pooling in ("average", "max"):
        assert build("lenet_cpl", (1, 9, 9), 3, {"pooling": pooling, "dropout": 0.5}).head == HEAD
    layers = (nn.Linear(4, 5), nn.Softplus(), nn.Dropout(0.5), nn.Linear(5, 3, bias=False))
    assert from_module(nn.Sequential(*layers), input_shape=(4,)).head == Dense("3.weight", None, nonnegative=True)
    assert from_module(nn.Sequential(*layers).eval(), input_shape=(4,)).head == Dense(
        "3.weight", None, nonnegative=True
    )


class Net(nn.Module):
    """Two dense layers and a way to use them."""

    def __init__(self, way: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def written_after(net: Net, x: Tensor) -> Tensor:
    hidden = torch.relu(net.first(x))
    hidden -= 0.001
    return net.last(hidden)


def written_behind(net: Net, x: Tensor) -> Tensor:
    hidden = torch.relu(net.first(x))
    hidden.data.sub_(0.5)
    return net.last(hidden)


FIRST, LAST = Dense("first.weight", "first.bias", True), Dense("last.weight", "last.bias", True)
SIGNED = Dense("last.weight", "last.bias", False)


@pytest.mark.parametrize(
    ("way", "head", "entry"),
    [
        (lambda n, x: n.last(F.relu(n.first(x))), LAST, FIRST),
        (lambda n, x: n.last(n.first(x).sigmoid().view(-1, 4)), LAST, FIRST),
        (lambda n, x: n.last(F.relu(n.first(x), inplace=True).reshape(len(x), -1)), LAST, FIRST),
        (lambda n, x: n.last(torch.tanh(n.first(x))), SIGNED, FIRST),
        (lambda n, x: n.last(n.first(x).abs()), SIGNED, FIRST),
        (lambda n, x: n.last(torch.relu(n.first(x)) - 1), SIGNED, FIRST),
        (written_after, SIGNED, FIRST),
        (written_behind, SIGNED, FIRST),
        (lambda n, x: F.relu(n.last(F.relu(n.first(x)))), None, FIRST),
        (lambda n, x: F.relu(n.last(F.relu(n.first(x))), inplace=True), None, FIRST),
        (lambda n, x: n.last(F.relu(n.first(x))) * 2, None, FIRST),
        (lambda n, x: n.last(n.last(F.relu(n.first(x)))), None, FIRST),
        (lambda n, x: n.last(F.relu(n.first(x) @ n.last.weight)), None, FIRST),
        (lambda n, x: n.last(F.relu(n.first(x))[:, : n.last.weight.shape[1]]), SIGNED, FIRST),
        (lambda n, x: n.last(F.relu(n.first(x - 0.5))), LAST, None),
        (lambda n, x: n.last(F.relu(n.first(F.relu(x)))), LAST, None),
        (lambda n, x: n.last(F.relu(n.first(x.flip(1)))), LAST, None),
        (lambda n, x: F.linear(x, n.last.weight), None, None),
    ],
)
def test_only_what_the_data_prove_is_claimed(
    way: Callable[[Net, Tensor], Tensor], head: Dense | None, entry: Dense | None
) -> None:
    model = from_module(Net(way), input_shape=(4,))
    assert model.head == head
    assert model.entry == entry


def test_a_bare_dense_layer_is_head_and_entry() -> None:
    model = from_module(nn.Linear(4, 3, bias=False), input_shape=(4,))
    assert model.head == Dense("weight", None, nonnegative=False)
    assert model.entry == Dense("weight", None, nonnegative=True)


class Branches(nn.Module):
    """Several dense layers that read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(4, 3), nn.Linear(4, 8)
        self.unbiased, self.last = nn.Linear(4, 9, bias=False), nn.Linear(17, 3)

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.narrow(x)
        return narrow + self.last(torch.cat([self.unbiased(x), self.wide(x)], 1))


def test_the_widest_dense_layer_with_a_bias_that_reads_the_input_is_the_entry() -> None:
    assert from_module(Branches(), input_shape=(4,)).entry == Dense("wide.weight", "wide.bias", nonnegative=True)


def test_entry_is_not_nonnegative_when_the_example_is_not() -> None:
    model = from_module(nn.Linear(4, 3), input_shape=(4,), example=torch.tensor([[0.1, -0.1, 0.0, 1.0]]))
    assert model.entry == Dense("weight", "bias", nonnegative=False)


def test_tied_and_reshaped_heads_are_not_claimed() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    model = from_module(tied, input_shape=(3,))
    assert model.head is None
    assert model.entry is None
    pooled = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert from_module(pooled, input_shape=(1, 5, 5)).head is None


def test_a_layer_changed_by_a_hook_is_not_claimed() -> None:
    module = nn.Linear(4, 3)
    module.register_forward_hook(lambda layer, args, result: result * 2)
    assert from_module(module, input_shape=(4,)).head is None


def test_keyed_dropout_of_signed_features_stays_signed() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), KeyedDropout(0.5), nn.Linear(5, 3))
    assert from_module(module, input_shape=(4,)).head == Dense("3.weight", "3.bias", nonnegative=False)
