"""Batch norm in train mode: many clients at once against torch's own layer on each of them alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.padding import counting, real_examples
from leakscope.core.tree import Tree, lift, take, to
from leakscope.core.types import LocalTraining
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import build, find_shortfall, from_module
from leakscope.models.batch_norm import in_train_mode
from leakscope.models.initialise import Torch, draw_parameters

KEYS = random.key([1, 2, 3])
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True, True] + [False] * 4])


def model_of(module: nn.Module, *shape: int) -> Model:
    return to(from_module(module.eval(), input_shape=shape), dtype=torch.float64)


def dense(momentum: float | None = 0.1, *, affine: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(6, momentum=momentum, affine=affine)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 3))


NETWORKS = {
    "dense": lambda: model_of(dense(), 4),
    "cumulative": lambda: model_of(dense(None), 4),
    "not affine": lambda: model_of(dense(affine=False), 4),
    "series": lambda: model_of(
        nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 3)), 2, 5
    ),
    "volume": lambda: model_of(
        nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(16, 3)), 1, 3, 3, 3
    ),
    "resnet": lambda: to(build("resnet20", (1, 8, 8), 3, {"width": 2}), dtype=torch.float64),
}


def many(model: Model, local: LocalTraining, x: Tensor, y: Tensor, order: Tensor) -> tuple[Tree, Tree]:
    trained = in_train_mode(model)
    weights, buffers = (
        {name: value.expand(3, *value.shape) for name, value in tree.items()}
        for tree in (model.parameters, model.buffers)
    )

    def one(w: Tree, b: Tree, x: Tensor, y: Tensor, m: Tensor, o: Tensor, k: Tensor) -> tuple[Tree, Tree]:
        return train(trained, cross_entropy, local, w, b, x, one_hot(y, 3, x.dtype), m, o, k)

    return lift(one)(weights, buffers, x, y, MASK, order, KEYS)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_weights_and_statistics_of_unequal_clients_are_those_of_torchs_layer(name: str) -> None:
    model = NETWORKS[name]()
    x = random.uniform(KEYS, (6, *model.input_shape), torch.float64)
    y = (random.uniform(KEYS, (6,)) * 3).long()
    local = LocalTraining(epochs=3, batch_size=2, rate=0.1, momentum=0.5)
    order = draw_order(local, 6, KEYS, MASK)
    weights, buffers = many(model, local, x, y, order)
    for i in range(3):
        module = copy.deepcopy(model.apply.module).double().train()
        module.load_state_dict({**model.parameters, **model.buffers})
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        for row in order[i].tolist():
            batch = [j for j in row if j >= 0]
            if batch:
                optimiser.zero_grad()
                F.cross_entropy(module(x[i][batch]), y[i][batch]).backward()
                optimiser.step()
        assert_close(take(weights, i), dict(module.named_parameters()), rtol=1e-8, atol=1e-10)
        assert_close(take(buffers, i), dict(module.named_buffers()), rtol=1e-8, atol=1e-10)
    assert not torch.equal(buffers[next(n for n in buffers if n.endswith("mean"))][0], torch.zeros(1))


@settings(deadline=None, max_examples=25)
@given(present=st.lists(st.booleans(), min_size=2, max_size=7).filter(lambda m: sum(m) > 1), seed=st.integers(0, 999))
def test_padding_does_not_count_whatever_it_holds(present: list[bool], seed: int) -> None:
    model, mask = in_train_mode(NETWORKS["dense"]()), torch.tensor(present)
    x = random.normal(random.key(seed), (len(present), 4), torch.float64)
    y = one_hot(torch.arange(len(present)) % 3, 3, torch.float64)

    def run(x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tree, Tree]:
        gradient, _, _, after = loss_and_gradient(
            model, cross_entropy, model.parameters, model.buffers, x, y, mask, KEYS[0]
        )
        return gradient, after

    padded = run(torch.where(mask[:, None], x, 1e3 * x), y, mask)
    alone = run(x[mask], y[mask], torch.ones(int(mask.sum()), dtype=torch.bool))
    assert_close(padded, alone, rtol=1e-8, atol=1e-9)


def test_a_single_value_leaves_the_variance_and_gives_the_bias() -> None:
    """Torch refuses it; beside larger clients it cannot be refused, and must not turn into NaN."""
    model = in_train_mode(model_of(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), 4))
    x = torch.rand(1, 4, dtype=torch.float64)
    output, buffers = model.apply(model.parameters, model.buffers, x, KEYS[0])
    expected = model.parameters["0.bias"] @ model.parameters["1.weight"].T + model.parameters["1.bias"]
    assert_close(output[0], expected)
    assert_close(buffers["0.running_var"], model.buffers["0.running_var"])
    assert_close(buffers["0.running_mean"], 0.1 * x[0])


@pytest.mark.parametrize("real", [0, 1])
def test_padding_does_not_overflow_in_a_deep_network(real: int) -> None:
    """Normalised by the spread of no example or one, padding would grow 300-fold a layer, and inf times 0 is NaN."""
    layers = [layer for _ in range(40) for layer in (nn.Linear(4, 4), nn.BatchNorm1d(4))]
    model = in_train_mode(to(model_of(nn.Sequential(*layers, nn.Linear(4, 3)), 4), dtype=torch.float32))
    x, mask = random.uniform(KEYS[0], (3, 4)), torch.arange(3) < real
    target = one_hot(torch.zeros(3, dtype=torch.long), 3, torch.float32)
    gradient, _, _, _ = loss_and_gradient(
        model, cross_entropy, model.parameters, model.buffers, x, target, mask, KEYS[0]
    )
    assert all(value.isfinite().all() for value in gradient.values())
    assert real or all((value == 0).all() for value in gradient.values())


def test_an_epoch_ends_in_a_single_example_without_nan() -> None:
    model = NETWORKS["dense"]()
    local = LocalTraining(epochs=2, batch_size=5, rate=0.1)
    x, y = random.uniform(KEYS, (6, 4), torch.float64), (random.uniform(KEYS, (6,)) * 3).long()
    weights, buffers = many(model, local, x, y, draw_order(local, 6, KEYS, MASK))
    assert all(value.isfinite().all() for value in (*weights.values(), *buffers.values()))


def test_the_derivative_of_local_training_in_the_inputs_passes_finite_differences() -> None:
    model = NETWORKS["dense"]()
    trained, local = in_train_mode(model), LocalTraining(epochs=2, batch_size=2, rate=0.1)
    order, y = draw_order(local, 4, KEYS[0]), one_hot(torch.tensor([0, 1, 2, 0]), 3, torch.float64)

    def value(x: Tensor) -> Tensor:
        real = torch.ones(4, dtype=torch.bool)
        after, _ = train(trained, cross_entropy, local, model.parameters, model.buffers, x, y, real, order, KEYS[0])
        return torch.cat([(v * v.cos()).flatten() for v in after.values()]).sum()

    x = random.uniform(KEYS[0], (4, 4), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(value, [x], atol=1e-6)


def test_the_architecture_the_names_and_the_drawn_weights_stay() -> None:
    model = build("resnet20", (1, 8, 8), 3, {"width": 2})
    trained = in_train_mode(model)
    assert repr(trained.apply.module) == repr(model.apply.module)
    assert list(trained.parameters) == list(model.parameters)
    assert_close(draw_parameters(trained, Torch(), KEYS), draw_parameters(model, Torch(), KEYS), rtol=0, atol=0)
    assert find_shortfall(trained) is None


def test_a_layer_that_is_the_whole_network_is_replaced_too() -> None:
    model = in_train_mode(model_of(nn.BatchNorm1d(3), 3))
    assert type(model.apply.module).__name__ == "CountingBatchNorm1d"


def test_dropout_comes_on_as_well() -> None:
    model = model_of(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), 4)
    x = torch.ones(2, 4, dtype=torch.float64)
    still, moving = (m.apply(m.parameters, {}, x, KEYS[0])[0] for m in (model, in_train_mode(model)))
    assert not torch.equal(still, moving)


def test_rows_that_are_not_the_examples_are_refused() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.norm(torch.cat([x, x])))[: len(x)]
            return out

    model = in_train_mode(model_of(Doubled(), 4))
    with counting(torch.tensor([True, False])), pytest.raises(InputError, match=r"4 rows,.*2"):
        model.apply(model.parameters, model.buffers, torch.rand(2, 4, dtype=torch.float64), KEYS[0])
    assert real_examples() is None
