"""Several rounds of one client: fresh draws, memory that is used, weights that the server moves; and what is told of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, norm, subtract, take, tensors, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Shares, direction, make_batch
from leakscope.defences import (
    Clip,
    DeepCompression,
    Defence,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    RememberingDefence,
    Sign,
    Sparsify,
    UpdateDefence,
)
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import LOSSES, one_hot
from leakscope.models import Torch, build, draw_parameters, from_module

CLASSES, TRIALS = 3, 3
SEEDS = [11, 12, 13]
LOCAL = LocalTraining(epochs=2, rate=0.3)
BOTH = pytest.mark.parametrize("local", [None, LOCAL], ids=["gradient", "weights"])


def network() -> Model:
    return to(build("mlp", (4,), CLASSES, {"hidden": (5,), "activation": "tanh"}), dtype=torch.float64)


def weights_of(model: Model, trials: int = TRIALS) -> Tree:
    return to(draw_parameters(model, Torch(), random.key(SEEDS * (trials // 3))), dtype=torch.float64)


def batch_of(trials: int = TRIALS) -> Batch:
    generator = torch.Generator().manual_seed(trials)
    x = torch.rand((trials, 4, 4), generator=generator, dtype=torch.float64)
    return make_batch(x, torch.randint(CLASSES, (trials, 4), generator=generator), classes=CLASSES)


def observe(client: Client) -> Observation:
    model = network()
    return client.observe(model, weights_of(model), batch_of(), SEEDS)


def updates(seen: Observation) -> list[Tree]:
    return [direction(each, seen.shares) for each in seen.rounds]


def gradient(weights: Tree) -> Tree:
    """Return the plain gradient of every trial at given weights."""
    model, batch = network(), batch_of()

    def one(weights: Tree, x: Tensor, y: Tensor, mask: Tensor, key: Tensor) -> Tree:
        return loss_and_gradient(
            model, LOSSES["cross_entropy"], weights, {}, x, one_hot(y, CLASSES, x.dtype), mask, key
        )[0]

    return lift(one)(weights, batch.inputs, batch.labels, batch.mask, random.key(SEEDS))


def long(tree: Tree) -> Tensor:
    """Return a tree of many trials as one row per trial."""
    return torch.cat([value.flatten(1) for value in tree.values()], 1)


# -- one round


@BOTH
def test_one_round_is_bit_for_bit_what_a_client_without_the_option_gives(local: LocalTraining | None) -> None:
    defences = (Clip(0.5), GaussianNoise(0.1))
    plain, asked = (
        observe(Client(local, defences=defences, **more)) for more in ({}, {"rounds": 1, "server_rate": 0.7})
    )
    assert len(plain.rounds) == 1
    assert_close(list(tensors(asked)), list(tensors(plain)), rtol=0, atol=0)


def test_one_round_is_bit_for_bit_the_gradient_and_then_the_defences_with_the_clients_key() -> None:
    model = network()
    keys = random.fold(random.fold(random.key(SEEDS), "client"), "defence")

    def one(update: Tree, key: Tensor) -> Tree:
        clipped = Clip(0.5).protect_update(update, random.fold(key, 0))
        return GaussianNoise(0.1).protect_update(clipped, random.fold(key, 1))

    expected = lift(one)(gradient(weights_of(model)), keys)
    made = observe(Client(defences=(Clip(0.5), GaussianNoise(0.1)))).rounds[0].sent
    assert_close(made, expected, rtol=0, atol=0)


@BOTH
def test_the_first_of_several_rounds_is_the_only_one_of_one(local: LocalTraining | None) -> None:
    defences = (LaplaceNoise(0.1), DeepCompression(0.5))
    one = observe(Client(local, defences=defences))
    many = observe(Client(local, defences=defences, rounds=3, server_rate=0.5))
    assert_close(many.rounds[0].sent, one.rounds[0].sent, rtol=0, atol=0)


# -- several rounds


@BOTH
def test_rounds_asked_are_rounds_given_and_without_defence_or_step_all_alike(local: LocalTraining | None) -> None:
    seen = observe(Client(local, rounds=3))
    assert len(seen.rounds) == 3
    assert seen.samples.tolist() == [4, 4, 4]
    for each in seen.rounds[1:]:
        assert_close(each.before, seen.rounds[0].before, rtol=0, atol=0)
        assert_close(each.sent, seen.rounds[0].sent, rtol=0, atol=0)


@pytest.mark.parametrize("defence", [GaussianNoise(1.0), LaplaceNoise(1.0)], ids=["gaussian", "laplace"])
@BOTH
def test_every_round_draws_its_own_noise_so_averaging_them_helps(local: LocalTraining | None, defence: Defence) -> None:
    rounds = 16
    plain = long(updates(observe(Client(local)))[0])
    noise = torch.stack([long(u) for u in updates(observe(Client(local, defences=(defence,), rounds=rounds)))]) - plain
    apart = torch.corrcoef(noise.flatten(1))
    off = apart[~torch.eye(rounds, dtype=torch.bool)]
    assert float(off.abs().max()) < 5 / math.sqrt(noise[0].numel())
    assert 0.8 < float(noise.std()) < 1.2
    assert 0.8 < float(noise.mean(0).std()) * math.sqrt(rounds) < 1.2


@pytest.mark.parametrize("defence", [RandomMask(0.5), Quantise(2)], ids=["mask", "quantise"])
def test_every_round_masks_and_rounds_afresh(defence: Defence) -> None:
    rounds = [long(u) for u in updates(observe(Client(defences=(defence,), rounds=3)))]
    assert not any(torch.equal(rounds[i], rounds[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_every_round_draws_dropout_and_the_order_of_examples_afresh() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)).train()
    model = to(from_module(layers, input_shape=(4,)), dtype=torch.float64)
    weights = {n: v.expand(TRIALS, *v.shape) for n, v in model.parameters.items()}
    dropped = Client(rounds=3).observe(model, weights, batch_of(), SEEDS)
    assert not torch.equal(dropped.rounds[0].sent["0.weight"], dropped.rounds[1].sent["0.weight"])
    assert not torch.equal(dropped.rounds[1].sent["0.weight"], dropped.rounds[2].sent["0.weight"])
    shuffled = observe(Client(LocalTraining(batch_size=1, rate=0.3), rounds=2))
    assert not torch.equal(shuffled.rounds[0].sent["head.bias"], shuffled.rounds[1].sent["head.bias"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_what_is_remembered_is_used_and_the_server_moves_the_weights(rate: float, momentum: float) -> None:
    """Against a loop by hand: gradient where the server is, accumulate, send the largest, step by what was sent."""
    seen = observe(Client(defences=(DeepCompression(0.8, momentum=momentum),), rounds=4, server_rate=rate))
    here = weights_of(network())
    size = long(here).shape[1]
    number = round(0.2 * size)
    u, v = torch.zeros(TRIALS, size, dtype=torch.float64), torch.zeros(TRIALS, size, dtype=torch.float64)
    for each in seen.rounds:
        assert_close(each.before, here, rtol=1e-12, atol=1e-12)
        u = momentum * u + long(gradient(here))
        v = v + u
        mask = torch.zeros_like(v)
        for i in range(TRIALS):
            mask[i, v[i].abs().topk(number).indices] = 1
        assert_close(long(each.sent), v * mask, rtol=1e-10, atol=1e-12)
        parts = (v * mask).split([value[0].numel() for value in here.values()], 1)
        here = {n: w - rate * p.reshape(w.shape) for (n, w), p in zip(here.items(), parts, strict=True)}
        u, v = u * (1 - mask), v * (1 - mask)
    assert not torch.equal(seen.rounds[0].sent["head.weight"], seen.rounds[1].sent["head.weight"])


@BOTH
def test_the_server_steps_by_its_rate_times_the_protected_update(local: LocalTraining | None) -> None:
    seen = observe(Client(local, defences=(Clip(0.3), LaplaceNoise(0.01)), rounds=3, server_rate=0.7))
    assert seen.shares is (Shares.GRADIENT if local is None else Shares.WEIGHTS)
    for now, later in zip(seen.rounds, seen.rounds[1:], strict=False):
        change = direction(now, seen.shares)
        assert_close(later.before, {n: now.before[n] - 0.7 * change[n] for n in change}, rtol=1e-12, atol=1e-12)


def test_with_rate_one_the_server_of_fedavg_takes_the_clients_weights() -> None:
    seen = observe(Client(LOCAL, rounds=3, server_rate=1.0))
    for now, later in zip(seen.rounds, seen.rounds[1:], strict=False):
        assert_close(later.before, now.sent, rtol=1e-12, atol=1e-12)


def test_a_diverged_update_leaves_weights_alone_that_the_server_does_not_move() -> None:
    @dataclasses.dataclass(frozen=True)
    class Broken:
        def protect_update(self, update: Tree, key: Tensor) -> Tree:
            return {name: value / 0 for name, value in update.items()}

    seen = observe(Client(defences=(Broken(),), rounds=2))
    assert_close(seen.rounds[1].before, seen.rounds[0].before, rtol=0, atol=0)


def test_private_parameters_stay_where_they_are_between_rounds() -> None:
    model = dataclasses.replace(network(), private=frozenset({"head.weight", "head.bias"}))
    client = Client(defences=(DeepCompression(0.5),), rounds=3, server_rate=0.5)
    seen = client.observe(model, weights_of(model), batch_of(), SEEDS)
    for each in seen.rounds:
        assert set(each.before) == set(each.sent) == {"dense1.weight", "dense1.bias"}
    here = {**weights_of(model), **seen.rounds[1].before}
    expected = long(model.shared(gradient(here))) + long(
        subtract(model.shared(gradient(weights_of(model))), seen.rounds[0].sent)
    )
    sent = long(seen.rounds[1].sent)
    assert_close(sent, expected * (sent != 0), rtol=1e-10, atol=1e-12)


@BOTH
def test_strengths_and_memory_of_each_trial_are_its_own(local: LocalTraining | None) -> None:
    """More trials than are computed at once, each with a strength, over several rounds, equal every trial alone."""
    model, trials = network(), 66
    weights, batch, seeds = weights_of(model, trials), batch_of(trials), list(range(trials))
    drop = torch.linspace(0, 0.9, trials)
    client = Client(local, defences=(LaplaceNoise(0.1), DeepCompression(drop)), rounds=3, server_rate=0.5)
    whole = client.observe(model, weights, batch, seeds)
    for i in (0, 40, 65):
        one = slice(i, i + 1)
        alone = dataclasses.replace(client, defences=(LaplaceNoise(0.1), DeepCompression(float(drop[i]))))
        made = alone.observe(model, take(weights, one), take(batch, one), seeds[one])
        for each, other in zip(whole.rounds, made.rounds, strict=True):
            assert_close(take(each.sent, one), other.sent, rtol=1e-9, atol=1e-10)


def test_several_rounds_carry_no_graph_and_change_nothing_given() -> None:
    model = network()
    weights = {name: value.requires_grad_() for name, value in weights_of(model).items()}
    kept = {name: value.detach().clone() for name, value in weights.items()}
    client = Client(defences=(DeepCompression(0.5), Quantise()), rounds=3, server_rate=0.5)
    seen = client.observe(model, weights, batch_of(), SEEDS)
    assert not any(value.requires_grad for value in tensors(seen))
    assert_close({n: w.detach() for n, w in weights.items()}, kept, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, r"Client\.rounds .*got 0"),
        ({"rounds": -2}, r"Client\.rounds .*got -2"),
        ({"rounds": 1.5}, r"Client\.rounds .*got 1\.5"),
        ({"server_rate": -0.1}, r"Client\.server_rate .*got -0\.1"),
        ({"server_rate": math.nan}, r"Client\.server_rate .*got nan"),
        ({"server_rate": math.inf}, r"Client\.server_rate .*got inf"),
    ],
)
def test_rounds_and_rates_out_of_range_are_one_clear_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^{words}$"):
        Client(**settings)


# -- weights: the change is protected


@pytest.mark.parametrize(
    "defence",
    [Clip(0.05), Sparsify(0.7), Sign(), Quantise(3, stochastic=False), LowRank(1), Sparsify(0.7, each=True)],
    ids=lambda d: type(d).__name__,
)
def test_fedavg_protects_the_change_of_the_weights(defence: UpdateDefence) -> None:
    before = weights_of(network())
    change = subtract(before, observe(Client(LOCAL)).rounds[0].sent)
    expected = lift(defence.protect_update)(change, random.key(SEEDS))
    made = observe(Client(LOCAL, defences=(defence,))).rounds[0]
    assert_close(made.sent, subtract(before, expected), rtol=1e-9, atol=1e-10)
    assert_close(made.before, before, rtol=0, atol=0)


def test_fedavg_under_a_clip_ends_near_where_it_began() -> None:
    seen = observe(Client(LOCAL, defences=(Clip(0.05),)))
    assert_close(lift(norm)(updates(seen)[0]), torch.full((TRIALS,), 0.05, dtype=torch.float64), rtol=1e-8, atol=0)


# -- what an attacker who knows is told


def aware(client: Client) -> tuple[Knowledge, Observation]:
    seen = observe(client)
    return knowledge_of_defences(attacker_knowledge(network(), client, batch_of()), client, seen), seen


def inside(value: object) -> Iterator[object]:
    """Yield a value and everything in it."""
    yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from inside(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from inside(item)
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from inside(item)


STACKS: list[tuple[Defence, ...]] = [
    (),
    (GaussianNoise(0.1),),
    (Clip(0.5), LaplaceNoise(0.1), Sparsify(0.5)),
    (DeepCompression(0.5), Quantise(4)),
    (RandomMask(0.5), Sign()),
    (LowRank(1),),
]


@BOTH
@pytest.mark.parametrize("defences", STACKS, ids=lambda stack: "+".join(type(d).__name__ for d in stack) or "none")
def test_facts_are_told_and_never_a_defence(defences: tuple[Defence, ...], local: LocalTraining | None) -> None:
    client = Client(local, defences=defences, rounds=2)
    knowledge, _ = aware(client)
    for value in inside(knowledge):
        assert not isinstance(value, UpdateDefence | RememberingDefence)
        assert not type(value).__module__.startswith("leakscope.defences")
    kinds = {type(d) for d in defences}
    assert (knowledge.mask is not None) is bool(kinds & {Sparsify, DeepCompression, RandomMask})
    assert (knowledge.bound is not None) is (Clip in kinds)
    assert (knowledge.bits is not None) is bool(kinds & {Sign, Quantise})
    assert (knowledge.sigma is not None) is bool(kinds & {GaussianNoise, LaplaceNoise})
    unaware = attacker_knowledge(network(), client, batch_of())
    assert unaware.mask is unaware.bound is unaware.bits is unaware.sigma is None
    for field in dataclasses.fields(Knowledge):
        if field.name not in ("mask", "bound", "bits", "sigma"):
            assert getattr(knowledge, field.name) is getattr(unaware, field.name) or getattr(
                knowledge, field.name
            ) == getattr(unaware, field.name)


@pytest.mark.parametrize(
    ("defences", "field", "value"),
    [
        ((Clip(0.5),), "bound", [0.5] * 3),
        ((Clip(torch.tensor([1.0, 2.0, 3.0])),), "bound", [1.0, 2.0, 3.0]),
        ((Sign(),), "bits", [1] * 3),
        ((Quantise(5),), "bits", [5] * 3),
        ((GaussianNoise(0.25),), "sigma", [0.25] * 3),
        ((GaussianNoise(torch.tensor([0.0, 0.5, 2.0])),), "sigma", [0.0, 0.5, 2.0]),
        ((LaplaceNoise(0.25),), "sigma", [0.25] * 3),
        ((LaplaceNoise(scale=0.25),), "sigma", [0.25 * math.sqrt(2)] * 3),
        ((LaplaceNoise(scale=torch.tensor([1.0, 0.0, 2.0])),), "sigma", [math.sqrt(2), 0.0, math.sqrt(8)]),
        ((GaussianNoise(3.0), LaplaceNoise(4.0)), "sigma", [5.0] * 3),
        ((Clip(1.0), LaplaceNoise(torch.tensor([0.0, 4.0, 12.0])), GaussianNoise(5.0)), "sigma", [5.0, 41**0.5, 13.0]),
    ],
)
def test_each_fact_is_the_defences_own_number_for_every_trial(
    defences: tuple[Defence, ...], field: str, value: list[float]
) -> None:
    knowledge, _ = aware(Client(defences=defences))
    fact = getattr(knowledge, field)
    assert fact.shape == (TRIALS,)
    assert_close(fact.double(), torch.tensor(value, dtype=torch.float64), rtol=1e-7, atol=0)
    assert fact.dtype == (torch.int64 if field == "bits" else torch.float64)


@BOTH
def test_a_mask_marks_what_was_sent_in_any_round(local: LocalTraining | None) -> None:
    for rounds in (1, 3):
        knowledge, seen = aware(Client(local, defences=(RandomMask(0.3),), rounds=rounds))
        assert knowledge.mask is not None
        changed = torch.stack([long(u) != 0 for u in updates(seen)])
        assert_close(long(knowledge.mask), changed.any(0).double(), rtol=0, atol=0)
        assert {n: (v.shape, v.dtype) for n, v in knowledge.mask.items()} == {
            n: (v.shape, v.dtype) for n, v in seen.rounds[0].sent.items()
        }
        assert abs(float(long(knowledge.mask).mean()) - (1 - 0.7**rounds)) < 0.2


@BOTH
def test_the_mask_of_sparsification_has_as_many_ones_as_were_sent(local: LocalTraining | None) -> None:
    drop = torch.tensor([0.0, 0.5, 0.9])
    knowledge, _ = aware(Client(local, defences=(Sparsify(drop),)))
    assert knowledge.mask is not None
    size = long(knowledge.mask).shape[1]
    assert long(knowledge.mask).sum(1).tolist() == [size, round(0.5 * size), round(0.1 * size)]
