"""Gradients by example from one backward pass are those of vmap(grad), for every network they say they can do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core.model import Model
from leakscope.core.tree import Tree, to
from leakscope.models import build, from_module
from leakscope.search.sample_gradients import sample_gradients

LABELS = torch.tensor([0, 2, 1, 2, 0])


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
