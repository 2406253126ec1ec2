"""The gradient of one client step, against plain autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, take, to
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import Uniform, build, draw_parameters, from_module

KEY = random.key(3)
NETWORKS = {
    "mlp": ((5,), {"hidden": (4,), "activation": "tanh"}),
    "lenet_dlg": ((1, 8, 8), {"width": 2}),
    "resnet20": ((1, 8, 8), None),
}


def network(name: str) -> Model:
    shape, chosen = NETWORKS[name]
    return to(build(name, shape, 3, chosen), dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def autograd(model: Model, parameters: Tree, x: Tensor, y: Tensor) -> tuple[Tree, Tensor, Tensor]:
    """Return gradient, loss and output the way every textbook computes them."""
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict(parameters, strict=False)
    output = module(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    return {name: p.grad for name, p in module.named_parameters()}, loss.detach(), output.detach()


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_gradient_loss_and_output_are_autograds(name: str) -> None:
    model = network(name)
    x, y = draw(0, 3, *model.input_shape), torch.tensor([0, 2, 1])
    present = torch.ones(3, dtype=torch.bool)
    gradient, loss, output, buffers = loss_and_gradient(
        model, cross_entropy, model.parameters, model.buffers, x, one_hot(y, 3, x.dtype), present, KEY
    )
    expected, value, rows = autograd(model, model.parameters, x, y)
    assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    assert_close(loss, value, rtol=1e-12, atol=1e-12)
    assert_close(output, rows, rtol=1e-12, atol=1e-12)
    assert_close(buffers, model.buffers, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mlp", "lenet_dlg"])
def test_masked_examples_do_not_count(name: str) -> None:
    model = network(name)
    x, y = draw(1, 4, *model.input_shape), torch.tensor([0, 2, 1, 1])
    mask = torch.tensor([True, False, True, False])
    gradient, loss, output, _ = loss_and_gradient(
        model, cross_entropy, model.parameters, model.buffers, x, one_hot(y, 3, x.dtype), mask, KEY
    )
    expected, value, _ = autograd(model, model.parameters, x[mask], y[mask])
    assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    assert_close(loss, value, rtol=1e-12, atol=1e-12)
    assert len(output) == 4


def test_lifted_over_trials_each_has_its_own_weights_inputs_and_mask() -> None:
    model = network("lenet_dlg")
    weights = to(draw_parameters(model, Uniform(), random.key([1, 2, 3])), dtype=torch.float64)
    x, y = draw(2, 3, 2, *model.input_shape), torch.tensor([[0, 1], [2, 1], [1, 1]])
    mask = torch.tensor([[True, True], [True, False], [False, True]])
    many = lift(
        lambda w, x, y, m: loss_and_gradient(model, cross_entropy, w, {}, x, one_hot(y, 3, x.dtype), m, KEY)[0]
    )(weights, x, y, mask)
    for i in range(3):
        expected, _, _ = autograd(model, take(weights, i), x[i][mask[i]], y[i][mask[i]])
        assert_close(take(many, i), expected, rtol=1e-10, atol=1e-12)


def test_dropout_draws_from_the_key_and_from_nothing_else() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    model = from_module(layers, input_shape=(4,))
    x, target, present = draw(0, 2, 4).float(), torch.eye(3)[[0, 1]], torch.ones(2, dtype=torch.bool)

    def gradient(key: int) -> Tensor:
        made = loss_and_gradient(model, cross_entropy, model.parameters, {}, x, target, present, random.key(key))[0]
        return made["0.weight"]

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(1), gradient(2))
