"""Local training against a plain loop over torch.optim, alone, lifted, masked, differentiated and recomputed."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, take, to
from leakscope.core.types import LocalTraining
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import Uniform, build, draw_parameters, from_module

KEY = random.key(5)
CLASSES = 3
Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

OPTIMISERS: dict[str, tuple[LocalTraining, Make]] = {
    "sgd": (LocalTraining(rate=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
    "momentum": (LocalTraining(rate=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (LocalTraining(rate=0.2, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.1)),
    "momentum and decay": (
        LocalTraining(rate=0.1, momentum=0.5, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.1),
    ),
    "adam": (LocalTraining(rate=0.01, optimiser="adam"), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam and decay": (
        LocalTraining(rate=0.01, optimiser="adam", weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
}


def network(name: str) -> Model:
    made = {
        "mlp": lambda: build("mlp", (4,), CLASSES, {"hidden": (5,), "activation": "tanh"}),
        "lenet_dlg": lambda: build("lenet_dlg", (1, 8, 8), CLASSES, {"width": 2}),
        "dropout": lambda: from_module(
            nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, CLASSES)).train(), input_shape=(4,)
        ),
    }[name]()
    return to(made, dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_labels(seed: int, *shape: int) -> Tensor:
    return torch.randint(CLASSES, shape, generator=torch.Generator().manual_seed(seed))


def trained(
    model: Model,
    local: LocalTraining,
    x: Tensor,
    y: Tensor,
    order: Tensor,
    *,
    mask: Tensor | None = None,
    parameters: Tree | None = None,
    key: Tensor = KEY,
    segment: int | None = None,
) -> Tree:
    weights = model.parameters if parameters is None else parameters
    present = torch.ones(len(x), dtype=torch.bool) if mask is None else mask
    target = one_hot(y, CLASSES, x.dtype)
    return train(model, cross_entropy, local, weights, model.buffers, x, target, present, order, key, segment=segment)[
        0
    ]


def plain_loop(
    model: Model, parameters: Tree, make: Make, x: Tensor, y: Tensor, batches: list[list[int]]
) -> list[Tree]:
    """Return the weights after every step of an ordinary training loop."""
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict({**model.buffers, **parameters})
    optimiser = make(module.parameters())
    found = []
    for batch in batches:
        optimiser.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
        found.append({name: p.detach().clone() for name, p in module.named_parameters()})
    return found


def batches_of(order: Tensor) -> list[list[int]]:
    return [[i for i in row if i >= 0] for row in order.tolist()]


# -- the order of the examples


@settings(deadline=None, max_examples=60)
@given(
    samples=st.integers(1, 9),
    size=st.one_of(st.none(), st.integers(1, 11)),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_epoch_takes_every_example_once_in_full_batches_but_the_last(
    samples: int, size: int | None, epochs: int, shuffle: bool, seed: int
) -> None:
    local = LocalTraining(epochs=epochs, batch_size=size, shuffle=shuffle)
    order = draw_order(local, samples, random.key(seed))
    full = min(size or samples, samples)
    per_epoch = -(-samples // full)
    assert order.shape == (local.steps(samples), full) == (epochs * per_epoch, full)
    for epoch in order.reshape(epochs, -1).tolist():
        assert sorted(epoch[:samples]) == list(range(samples))
        assert epoch[samples:] == [-1] * (per_epoch * full - samples)
        if not shuffle:
            assert epoch[:samples] == list(range(samples))


def test_all_orders_are_equally_likely_and_epochs_are_shuffled_apart() -> None:
    order = draw_order(LocalTraining(epochs=2, batch_size=1), 3, random.key(list(range(1200))))[..., 0]
    first, second = order[:, :3].tolist(), order[:, 3:].tolist()
    for epoch in (first, second):
        seen = Counter(map(tuple, epoch))
        assert set(seen) == set(itertools.permutations(range(3)))
        assert min(seen.values()) > 140  # 200 expected, standard deviation 13
        assert max(seen.values()) < 260
    assert 140 < sum(a == b for a, b in zip(first, second, strict=True)) < 260


def test_orders_of_many_keys_are_those_of_each_key_also_under_vmap() -> None:
    local, keys = LocalTraining(epochs=2, batch_size=2), random.key([1, 2, 3])
    alone = torch.stack([draw_order(local, 5, k) for k in keys])
    assert torch.equal(draw_order(local, 5, keys), alone)
    assert torch.equal(lift(lambda k: draw_order(local, 5, k))(keys), alone)


# -- agreement with torch.optim


@pytest.mark.parametrize("name", ["mlp", "lenet_dlg"])
@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
def test_every_step_is_that_of_torch_optim(name: str, optimiser: str) -> None:
    model, (local, make) = network(name), OPTIMISERS[optimiser]
    local = replace(local, epochs=3, batch_size=2)
    x, y = draw(0, 5, *model.input_shape), draw_labels(0, 5)
    order = draw_order(local, 5, KEY)
    expected = plain_loop(model, model.parameters, make, x, y, batches_of(order))
    assert [len(b) for b in batches_of(order)] == [2, 2, 1] * 3
    for steps, weights in enumerate(expected, start=1):
        assert_close(trained(model, local, x, y, order[:steps]), weights, rtol=1e-8, atol=1e-8)


def test_one_step_in_float32_is_torchs_to_rounding() -> None:
    model = to(network("lenet_dlg"), dtype=torch.float32)
    x, y = draw(0, 4, *model.input_shape).float(), draw_labels(0, 4)
    local = LocalTraining(rate=0.2)
    ours = trained(model, local, x, y, draw_order(local, 4, KEY))
    double = to(model, dtype=torch.float64)
    expected = plain_loop(double, double.parameters, OPTIMISERS["sgd"][1], x.double(), y, [[0, 1, 2, 3]])[0]
    assert all(value.dtype == torch.float32 for value in ours.values())
    assert_close(to(ours, dtype=torch.float64), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_lifted_over_trials_each_is_what_it_is_alone(optimiser: str) -> None:
    model, (local, _) = network("lenet_dlg"), OPTIMISERS[optimiser]
    local = replace(local, epochs=2, batch_size=2)
    keys = random.key([1, 2, 3])
    weights = to(draw_parameters(model, Uniform(), keys), dtype=torch.float64)
    x, y = draw(1, 3, 3, *model.input_shape), draw_labels(1, 3, 3)
    order = draw_order(local, 3, keys)
    many = lift(lambda w, x, y, o, k: trained(model, local, x, y, o, parameters=w, key=k))(weights, x, y, order, keys)
    for i in range(3):
        alone = trained(model, local, x[i], y[i], order[i], parameters=take(weights, i), key=keys[i])
        assert_close(take(many, i), alone, rtol=1e-10, atol=1e-10)


def test_nothing_given_is_changed() -> None:
    model, (local, _) = network("mlp"), OPTIMISERS["momentum and decay"]
    x, y = draw(0, 3, 4), draw_labels(0, 3)
    before = copy.deepcopy((model.parameters, x))
    trained(model, local, x, y, draw_order(local, 3, KEY))
    assert_close((model.parameters, x), before, rtol=0, atol=0)


def test_every_step_draws_its_own_dropout_mask_from_the_key() -> None:
    model, local = network("dropout"), LocalTraining(epochs=2, rate=0.5)
    x, y = draw(0, 1, 4), draw_labels(0, 1)
    order = draw_order(local, 1, KEY)
    once, twice = (trained(model, local, x, y, order[:n]) for n in (1, 2))
    other = trained(model, local, x, y, order, key=random.key(6))
    first, second = (
        (b["0.weight"] - a["0.weight"]).abs().sum(1) > 0 for a, b in ((model.parameters, once), (once, twice))
    )
    assert not torch.equal(first, second)  # the units that were dropped did not move
    assert not torch.equal(twice["0.weight"], other["0.weight"])
    assert torch.equal(twice["0.weight"], trained(model, local, x, y, order)["0.weight"])


def test_buffers_of_a_network_in_eval_mode_come_back_as_they_were() -> None:
    layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).eval()
    model = to(from_module(layers, input_shape=(4,)), dtype=torch.float64)
    x, target = draw(0, 3, 4), one_hot(draw_labels(0, 3), CLASSES, torch.float64)
    present, local = torch.ones(3, dtype=torch.bool), LocalTraining(epochs=2)
    order = draw_order(local, 3, KEY)
    _, buffers = train(model, cross_entropy, local, model.parameters, model.buffers, x, target, present, order, KEY)
    assert_close(buffers, model.buffers, rtol=0, atol=0)


# -- clients of unequal size


@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
def test_padding_that_the_order_never_names_does_not_matter(optimiser: str) -> None:
    model, (local, _) = network("mlp"), OPTIMISERS[optimiser]
    local = replace(local, epochs=2, batch_size=2)
    x, y = draw(0, 3, 4), draw_labels(0, 3)
    order = draw_order(local, 3, KEY)
    wide, mask = torch.cat([x, draw(9, 2, 4)]), torch.tensor([True] * 3 + [False] * 2)
    padded = trained(model, local, wide, torch.cat([y, draw_labels(9, 2)]), order, mask=mask)
    assert_close(padded, trained(model, local, x, y, order), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
def test_a_batch_with_padding_is_the_mean_over_its_real_examples(optimiser: str) -> None:
    model, (local, make) = network("mlp"), OPTIMISERS[optimiser]
    x, y = draw(0, 5, 4), draw_labels(0, 5)
    mask = torch.tensor([True, False, True, True, False])
    order = torch.tensor([[0, 1, 2], [3, 4, -1], [2, 1, 4]])
    expected = plain_loop(model, model.parameters, make, x, y, [[0, 2], [3], [2]])[-1]
    assert_close(trained(model, local, x, y, order, mask=mask), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
def test_a_step_without_a_single_real_example_is_no_step(optimiser: str) -> None:
    """A small client beside a large one has steps of padding only: it must stand still and remember nothing of them."""
    model, (local, make) = network("mlp"), OPTIMISERS[optimiser]
    x, y = draw(0, 4, 4), draw_labels(0, 4)
    mask = torch.tensor([True, True, False, False])
    order = torch.tensor([[2, 3], [0, 1], [-1, -1], [3, -1], [1, 0], [2, 3]])
    expected = plain_loop(model, model.parameters, make, x, y, [[0, 1], [1, 0]])[-1]
    assert_close(trained(model, local, x, y, order, mask=mask), expected, rtol=1e-8, atol=1e-8)


# -- derivatives


def summed(weights: Tree) -> Tensor:
    """Return a scalar that every weight enters with its own factor."""
    flat = torch.cat([value.flatten() for value in weights.values()])
    return flat @ torch.linspace(1, 2, len(flat), dtype=flat.dtype).cos()


@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
def test_the_derivative_in_inputs_targets_and_first_weights_passes_finite_differences(optimiser: str) -> None:
    model = to(build("mlp", (2,), CLASSES, {"hidden": (2,), "activation": "tanh"}), dtype=torch.float64)
    local = replace(OPTIMISERS[optimiser][0], epochs=2, batch_size=2)
    names, start = list(model.parameters), list(model.parameters.values())
    order, present = draw_order(local, 3, KEY), torch.ones(3, dtype=torch.bool)

    def value(x: Tensor, target: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))
        return summed(train(model, cross_entropy, local, given, {}, x, target, present, order, KEY)[0])

    arguments = [draw(0, 3, 2), draw(1, 3, CLASSES).softmax(-1), *start]
    assert torch.autograd.gradcheck(value, [a.detach().clone().requires_grad_() for a in arguments], atol=1e-6)


def test_adam_has_a_finite_derivative_where_a_unit_is_dead() -> None:
    model = to(build("mlp", (2,), CLASSES, {"hidden": (3,)}), dtype=torch.float64)
    weights = {**model.parameters, "dense1.bias": torch.tensor([-9.0, 1.0, 1.0], dtype=torch.float64)}
    local = LocalTraining(epochs=2, rate=0.01, optimiser="adam")
    x, y = draw(0, 2, 2), draw_labels(0, 2)
    order = draw_order(local, 2, KEY)
    slope = torch.func.grad(lambda x: summed(trained(model, local, x, y, order, parameters=weights)))(x)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0


# -- recomputing segments


@pytest.mark.parametrize("segment", [1, 2, 4, 6, 7])
@pytest.mark.parametrize("optimiser", ["sgd", "momentum and decay", "adam"])
def test_segments_change_neither_the_weights_nor_the_derivative(optimiser: str, segment: int) -> None:
    """Order, mask and key are tensors of each trial's own; the dropout of every step must come out the same twice."""
    model = network("dropout")
    local = replace(OPTIMISERS[optimiser][0], epochs=3, batch_size=2)
    keys = random.key([1, 2, 3])
    x, y, order = draw(2, 3, 4, 4), draw_labels(2, 3, 4), draw_order(local, 4, keys)
    mask = torch.tensor([[True] * 4, [True, True, True, False], [False, True, True, True]])
    weights = to(draw_parameters(model, Uniform(), keys), dtype=torch.float64)

    def run(s: int | None, x: Tensor, w: Tree, y: Tensor, m: Tensor, o: Tensor, k: Tensor) -> tuple[Tensor, Tree]:
        after = trained(model, local, x, y, o, mask=m, parameters=w, key=k, segment=s)
        return summed(after), after

    def both(s: int | None) -> tuple[tuple[Tensor, Tree], Tree]:
        derive = torch.func.grad(lambda *given: run(s, *given), argnums=(0, 1), has_aux=True)
        return lift(derive)(x, weights, y, mask, order, keys)

    (kept, kept_after), (plain, plain_after) = both(segment), both(None)
    assert_close(kept_after, plain_after, rtol=1e-12, atol=1e-12)
    assert_close(kept, plain, rtol=1e-10, atol=1e-12)
    assert plain[0].abs().amax(dim=(1, 2)).min() > 0
    arguments = take((x, weights, y, mask, order, keys), 1)
    alone = torch.func.grad(lambda *given: run(segment, *given)[0])(*arguments)
    assert_close(alone, plain[0][1], rtol=1e-10, atol=1e-12)


def test_segments_work_for_a_network_with_batch_norm() -> None:
    """Its buffers are floats that must not be differentiated, and a counter that cannot be."""
    layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).eval()
    model = to(from_module(layers, input_shape=(4,)), dtype=torch.float64)
    local = LocalTraining(epochs=2, batch_size=2)
    x, y, order = draw(0, 3, 4), draw_labels(0, 3), draw_order(local, 3, KEY)
    slopes = [
        torch.func.grad(lambda x, s=segment: summed(trained(model, local, x, y, order, segment=s)))(x)
        for segment in (2, None)
    ]
    assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-12)
