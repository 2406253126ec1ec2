"""FedProx's term against a plain loop whose loss holds it, alone, lifted, masked and differentiated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, norm, subtract, take, to
from leakscope.core.types import LocalTraining
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import Uniform, build, draw_parameters

KEYS = random.key([1, 2, 3])
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
LOCALS = {
    "sgd": LocalTraining(rate=0.3, proximal=0.7),
    "momentum and decay": LocalTraining(rate=0.1, proximal=2.0, momentum=0.9, weight_decay=0.05),
    "adam": LocalTraining(rate=0.02, proximal=1.0, optimiser="adam"),
}


def optimiser_of(local: LocalTraining) -> Callable[..., torch.optim.Optimizer]:
    if local.optimiser == "adam":
        return lambda p: torch.optim.Adam(p, lr=local.rate, weight_decay=local.weight_decay)
    return lambda p: torch.optim.SGD(p, lr=local.rate, momentum=local.momentum, weight_decay=local.weight_decay)


def plain_loop(model: Model, weights: Tree, local: LocalTraining, x: Tensor, y: Tensor, order: Tensor) -> Tree:
    """Return the weights after an ordinary loop on loss + mu/2 |w - w0|^2; a row of -1 is no step."""
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict(weights)
    optimiser = optimiser_of(local)(module.parameters())
    start = [p.detach().clone() for p in module.parameters()]
    for row in order.tolist():
        batch = [i for i in row if i >= 0]
        if not batch:
            continue
        optimiser.zero_grad()
        away = sum((p - p0).square().sum() for p, p0 in zip(module.parameters(), start, strict=True))
        (F.cross_entropy(module(x[batch]), y[batch]) + local.proximal / 2 * away).backward()
        optimiser.step()
    return {name: p.detach() for name, p in module.named_parameters()}


def world() -> tuple[Model, Tree, Tensor, Tensor]:
    model = to(build("mlp", (4,), 3, {"hidden": (5,), "activation": "tanh"}), dtype=torch.float64)
    weights = to(draw_parameters(model, Uniform(), KEYS), dtype=torch.float64)
    x = random.uniform(KEYS, (5, 4), torch.float64)
    return model, weights, x, (random.uniform(KEYS, (5,)) * 3).long()


def trained(model: Model, local: LocalTraining, weights: Tree, x: Tensor, y: Tensor, order: Tensor) -> Tree:
    def one(w: Tree, x: Tensor, y: Tensor, m: Tensor, o: Tensor, k: Tensor) -> Tree:
        return train(model, cross_entropy, local, w, {}, x, one_hot(y, 3, x.dtype), m, o, k)[0]

    return lift(one)(weights, x, y, MASK, order, KEYS)


@pytest.mark.parametrize("name", sorted(LOCALS))
def test_unequal_clients_at_once_are_each_what_a_plain_loop_makes_of_them(name: str) -> None:
    model, weights, x, y = world()
    local = replace(LOCALS[name], epochs=3, batch_size=2)
    order = draw_order(local, 5, KEYS, MASK)
    many = trained(model, local, weights, x, y, order)
    for i in range(3):
        expected = plain_loop(model, take(weights, i), local, x[i], y[i], order[i])
        assert_close(take(many, i), expected, rtol=1e-9, atol=1e-10)


def test_without_the_term_nothing_changes_and_with_a_strong_one_clients_stay_at_home() -> None:
    model, weights, x, y = world()
    local = LocalTraining(epochs=30, rate=0.02)
    order = draw_order(local, 5, KEYS, MASK)
    away = {
        mu: lift(norm)(subtract(trained(model, replace(local, proximal=mu), weights, x, y, order), weights))
        for mu in (0.0, 1.0, 40.0)
    }
    assert (away[40.0] < away[1.0]).all()
    assert (away[1.0] < away[0.0]).all()
    plain = plain_loop(model, take(weights, 0), local, x[0], y[0], order[0])
    assert_close(take(trained(model, local, weights, x, y, order), 0), plain, rtol=1e-9, atol=1e-10)


def test_segments_differentiate_through_the_anchor() -> None:
    """The anchor is the first weights: their derivative must flow through the term, recomputed or not."""
    model, weights, x, y = world()
    local = replace(LOCALS["sgd"], epochs=4)
    order = draw_order(local, 5, KEYS[0])

    def total(w: Tree, segment: int | None) -> Tensor:
        target = one_hot(y[0], 3, x.dtype)
        after, _ = train(model, cross_entropy, local, w, {}, x[0], target, MASK[0], order, KEYS[0], segment=segment)
        return torch.stack([(value * value.cos()).sum() for value in after.values()]).sum()

    first = take(weights, 0)
    slopes = [torch.func.grad(total)(first, segment) for segment in (None, 2)]
    assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-12)
    step, along = 1e-6, {name: torch.ones_like(value) for name, value in first.items()}
    ahead, behind = ({n: v + s * along[n] for n, v in first.items()} for s in (step, -step))
    measured = (total(ahead, None) - total(behind, None)) / (2 * step)
    assert_close(sum(value.sum() for value in slopes[0].values()), measured, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_a_term_that_makes_no_sense_is_refused(mu: float) -> None:
    with pytest.raises(InputError, match=r"LocalTraining\.proximal must\b"):
        LocalTraining(proximal=mu)
