"""vmap(grad(grad)) through the adapter against plain autograd on the module itself, trial by trial, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, dot, subtract, take
from leakscope.models import MODELS, Uniform, draw_parameters, from_module
from small_parts import Attention

TRIALS, INPUTS = 3, 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(x)[0][:, -1])


def group_norm() -> nn.Module:
    body = (nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Sigmoid(), nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, affine=True))
    return nn.Sequential(*body, nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))


def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Sigmoid(), nn.Linear(5, 3))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Sigmoid(), nn.Linear(5, 3))


def registered(name: str, shape: tuple[int, ...], settings: dict[str, object]) -> Callable[[], nn.Module]:
    return lambda: MODELS[name](input_shape=shape, classes=3, **settings)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (registered("linear", (6,), {}), (6,)),
    "mlp": (registered("mlp", (2, 3), {"hidden": (5, 4), "activation": "tanh"}), (2, 3)),
    "lenet_dlg": (registered("lenet_dlg", (1, 9, 9), {"width": 3}), (1, 9, 9)),
    "lenet_dlg average": (registered("lenet_dlg", (3, 9, 9), {"width": 3, "pooling": "average"}), (3, 9, 9)),
    "lenet_cpl max": (registered("lenet_cpl", (1, 9, 9), {"width": 3, "pooling": "max"}), (1, 9, 9)),
    "lenet_cpl leaky": (registered("lenet_cpl", (1, 8, 8), {"width": 3, "activation": "leaky_relu"}), (1, 8, 8)),
    "resnet20": (registered("resnet20", (1, 8, 8), {"width": 2}), (1, 8, 8)),
    "resnet20_dlg": (registered("resnet20_dlg", (1, 5, 5), {"width": 2}), (1, 5, 5)),
    "resnet20_cpl": (registered("resnet20_cpl", (1, 5, 5), {"width": 2, "norm": "none"}), (1, 5, 5)),
    "cnn_mnist": (registered("cnn_mnist", (1, 6, 6), {}), (1, 6, 6)),
    "cnn_cifar": (registered("cnn_cifar", (3, 4, 4), {}), (3, 4, 4)),
    "group norm": (group_norm, (1, 6, 6)),
    "layer norm": (layer_norm, (6,)),
    "batch norm": (batch_norm, (6,)),
    "attention": (Attention, (3, 8)),
    "recurrent": (Recurrent, (3, 4)),
}


def with_random_statistics(module: nn.Module) -> nn.Module:
    """Running statistics that are not (0, 1), so that a norm layer does something."""
    for number, value in enumerate(module.buffers()):
        if value.is_floating_point():
            value.copy_(0.5 + random.uniform(random.key(number), value.shape, value.dtype))
    return module


def many_at_once(model: Model, weights: Tree, x: Tensor, y: Tensor, target: Tree) -> Tensor:
    """The gradient of the mismatch with respect to x, all trials in one vmap."""

    def mismatch(x: Tensor, w: Tree, y: Tensor, target: Tree) -> Tensor:
        def loss(w: Tree) -> Tensor:
            return F.cross_entropy(model.apply(w, model.buffers, x, random.key(0))[0], y)

        gap = subtract(grad(loss)(w), target)
        return dot(gap, gap)

    return vmap(grad(mismatch))(x, weights, y, target)


def one_by_one(module: nn.Module, weights: Tree, x: Tensor, y: Tensor, target: Tree) -> Tensor:
    """The same with torch.autograd.grad(create_graph=True) on the plain module."""
    slopes = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for t in range(TRIALS):
            module.load_state_dict(take(weights, t), strict=False)
            guess = x[t].clone().requires_grad_()
            loss = F.cross_entropy(module(guess), y[t])
            gradient = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
            names = [name for name, _ in module.named_parameters()]
            mismatch = sum(((g - target[n][t]) ** 2).sum() for n, g in zip(names, gradient, strict=True))
            assert isinstance(mismatch, Tensor)
            slopes.append(torch.autograd.grad(mismatch, guess)[0])
    return torch.stack(slopes)


@pytest.mark.parametrize("case", CASES)
def test_second_order_gradients_agree_with_plain_autograd(case: str) -> None:
    make, shape = CASES[case]
    module = with_random_statistics(make().double().eval())
    model = from_module(module, input_shape=shape)
    keys = random.key(range(TRIALS))
    weights = draw_parameters(model, Uniform(0.5), keys)
    assert all(value.dtype == torch.float64 for value in weights.values())
    target = {name: 0.1 * value for name, value in draw_parameters(model, Uniform(0.5), keys + 100).items()}
    x = random.uniform(random.fold(keys, "x"), (INPUTS, *shape), torch.float64)
    y = torch.tensor([[0, 1], [2, 2], [1, 0]])
    got = many_at_once(model, weights, x, y, target)
    expected = one_by_one(copy.deepcopy(module), weights, x, y, target)
    assert expected.abs().max() > 1e-12
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
