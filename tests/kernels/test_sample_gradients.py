"""Gradients by example from one backward pass are those of one example at a time, for every network they say they can do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core.model import Model
from leakscope.core.tree import Tree, to
from leakscope.kernels import layer_gradients
from leakscope.kernels import sample_gradients as module
from leakscope.kernels.sample_gradients import input_gradients, read_gradients
from leakscope.models import build, from_module

LABELS = torch.tensor([0, 2, 1, 2, 0])


def sample_gradients(model: Model, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> Tree | None:
    """Return the gradient of `loss(logits)` (a sum over examples) by every parameter, for each of N inputs; None if it cannot.

    It cannot where the network draws, normalises by the batch, or has a parameter that enters by another layer.
    """
    gradients: Tree = {}
    if not read_gradients(model, loss, inputs, gradients.__setitem__):
        return None
    return {name: gradients[name] for name in model.parameters}


def total(output: Tensor) -> Tensor:
    return F.cross_entropy(output, LABELS, reduction="sum")


def one_at_a_time(model: Model, inputs: Tensor) -> Tree:
    """Return the gradients by plain autograd, example by example."""
    rows = []
    for x, y in zip(inputs, LABELS, strict=True):
        weights = {name: value.clone().requires_grad_(True) for name, value in model.parameters.items()}
        output, _ = model.apply(weights, model.buffers, x[None], torch.tensor(0))
        rows.append(torch.autograd.grad(F.cross_entropy(output, y[None]), list(weights.values())))
    return {name: torch.stack(part) for name, part in zip(model.parameters, zip(*rows, strict=True), strict=True)}


def pictures(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(len(LABELS), *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("resnet20", {"width": 2}), ("convnet", {"width": 2}), ("lenet_dlg", {}), ("mlp", {})],
)
def test_they_are_those_of_one_example_at_a_time(name: str, settings: dict[str, int]) -> None:
    model = to(build(name, (3, 32, 32), 3, settings), dtype=torch.float64)
    model = model.with_parameters({n: v + 0.1 * torch.randn_like(v) for n, v in model.parameters.items()})
    inputs = pictures((3, 32, 32))
    made = sample_gradients(model, total, inputs)
    assert made is not None
    slow = one_at_a_time(model, inputs)
    assert list(made) == list(slow)
    for each in slow:
        torch.testing.assert_close(made[each], slow[each], rtol=1e-9, atol=1e-12)


class Twice(nn.Module):
    """One convolution used twice, with stride and dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=2, dilation=2)
        self.down = nn.Conv2d(2, 3, (3, 2), stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.conv(self.conv(x).sigmoid())).mean((2, 3))


def test_a_shared_layer_adds_up() -> None:
    model = to(from_module(Twice(), input_shape=(2, 9, 8)), dtype=torch.float64)
    inputs = pictures((2, 9, 8))
    made, slow = sample_gradients(model, total, inputs), one_at_a_time(model, inputs)
    assert made is not None
    for each in slow:
        torch.testing.assert_close(made[each], slow[each], rtol=1e-9, atol=1e-12)


class Folding(nn.Module):
    """Convolutions before batch norms in every way that folding must survive; `way` picks one."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=way != "no bias")
        self.norm, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 3, 1)
        for norm in (self.norm, self.other):
            norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        if way == "no scale":
            nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.way == "used twice":
            x = self.other(self.norm(x).relu() + x.tanh())
        elif self.way == "two norms":
            x = self.other(x) * self.norm(x)
        elif self.way == "in place":
            x.relu_()
            x = self.other(self.norm(x))
        elif self.way == "asked for its shape":
            x = self.other(self.norm(x.reshape(x.shape) if x.dim() == 4 and x.size(1) == 4 else x))
        else:
            x = self.other(self.norm(x).relu())
        return self.last(x).mean((2, 3))


WAYS = ("bias", "no bias", "no scale", "used twice", "two norms", "in place", "asked for its shape")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("few", "most"), [(0, 0), (0, 1000), (1000, 0), (1000, 1000)])
def test_a_batch_norm_folds_into_the_convolution_before_it(
    way: str, few: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folded or not, by columns or by a grouped convolution: the gradients are the same."""
    monkeypatch.setattr(layer_gradients, "FEW_POSITIONS", few)
    monkeypatch.setattr(module, "MOST_WEIGHTS", most)
    torch.manual_seed(0)
    model = to(from_module(Folding(way).eval(), input_shape=(2, 9, 7)), dtype=torch.float64)
    inputs = pictures((2, 9, 7))
    made, slow = sample_gradients(model, total, inputs), one_at_a_time(model, inputs)
    assert made is not None
    for each in slow:
        torch.testing.assert_close(made[each], slow[each], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 9, 8), (2, 30, 8)])
@pytest.mark.parametrize("few", [0, 1000])
def test_columns_meet_what_a_kernel_meets(shape: tuple[int, ...], few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_gradients, "FEW_POSITIONS", few)
    model = to(from_module(Twice(), input_shape=shape), dtype=torch.float64)
    made, slow = sample_gradients(model, total, pictures(shape)), one_at_a_time(model, pictures(shape))
    assert made is not None
    for each in slow:
        torch.testing.assert_close(made[each], slow[each], rtol=1e-9, atol=1e-12)


def test_gradients_are_read_whole_and_once_each() -> None:
    model = to(from_module(Twice(), input_shape=(2, 9, 8)), dtype=torch.float64)
    read: list[str] = []
    assert read_gradients(model, total, pictures((2, 9, 8)), lambda name, _: read.append(name))
    assert sorted(read) == sorted(model.parameters)


@pytest.mark.parametrize(("name", "settings"), [("resnet20", {"width": 2}), ("convnet", {"width": 2}), ("mlp", {})])
def test_gradients_by_inputs_are_those_of_one_at_a_time(name: str, settings: dict[str, int]) -> None:
    model = to(build(name, (3, 32, 32), 3, settings), dtype=torch.float64)
    inputs = pictures((3, 32, 32))
    made = input_gradients(model, total, inputs)
    assert made is not None
    for number, (x, y) in enumerate(zip(inputs, LABELS, strict=True)):
        one = x.clone().requires_grad_(True)
        output, _ = model.apply(model.parameters, model.buffers, one[None], torch.tensor(0))
        (slow,) = torch.autograd.grad(F.cross_entropy(output, y[None]), one)
        torch.testing.assert_close(made[number], slow, rtol=1e-9, atol=1e-12)
    mixing = build("resnet20", (1, 8, 8), 3, {"width": 2, "batch_statistics": True})
    assert input_gradients(mixing, total, torch.rand(5, 1, 8, 8)) is None


class Unused(nn.Module):
    """A layer whose output goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x.flatten(1))
        return self.dense(x.flatten(1))


def test_a_parameter_without_gradient_is_said() -> None:
    assert sample_gradients(from_module(Unused(), input_shape=(1, 2, 2)), total, torch.rand(5, 1, 2, 2)) is None


class Scaled(nn.Module):
    """A parameter that enters by no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x.flatten(1)) * self.scale


def test_what_it_cannot_do_it_says() -> None:
    inputs = pictures((1, 2, 2))
    outside = to(from_module(Scaled(), input_shape=(1, 2, 2)), dtype=torch.float64)
    assert sample_gradients(outside, total, inputs) is None
    grouped = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Flatten(), nn.Linear(16, 3))
    assert sample_gradients(from_module(grouped, input_shape=(4, 2, 2)), total, torch.rand(5, 4, 2, 2)) is None
    mixing = build("resnet20", (1, 8, 8), 3, {"width": 2, "batch_statistics": True})
    assert sample_gradients(mixing, total, torch.rand(5, 1, 8, 8)) is None
