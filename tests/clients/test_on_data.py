"""A client that transforms its pictures: what the network sees, what the server sees, what stays the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, LocalTraining, make_batch
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.models import Uniform, build, draw_parameters

SEEDS = [3, 4, 5]


def world(samples: int = 2) -> tuple[Model, Tree, Batch]:
    data = load("digits")
    x, y = data.pictures("test", range(3 * samples)), data.labels("test", range(3 * samples))
    batch = make_batch(x.reshape(3, samples, 1, 8, 8), y.reshape(3, samples), classes=10)
    model = build("lenet_cpl", (1, 8, 8), 10)
    return model, draw_parameters(model, Uniform(0.3), random.key(SEEDS)), batch


@pytest.mark.parametrize("local", [None, LocalTraining(epochs=2, batch_size=1, rate=0.05)])
@pytest.mark.parametrize("policy", ["3-1-7", "3-1-7+43-18-18", "0"])
def test_the_update_is_that_of_the_transformed_pictures(policy: str, local: LocalTraining | None) -> None:
    model, weights, batch = world()
    plain = Client(local, scaling=Scaling((0.3,), (0.4,)))
    client = replace(plain, on_data=Transform(policy, crop=1, flip=True))
    moved = client.transformed(batch, SEEDS)
    assert not torch.equal(moved.inputs, batch.inputs)
    ours = client.observe(model, weights, batch, SEEDS)
    slow = plain.observe(model, weights, moved, SEEDS)
    for name, value in slow.rounds[0].sent.items():
        torch.testing.assert_close(ours.rounds[0].sent[name], value)


def test_the_private_batch_is_left_as_it_was() -> None:
    model, weights, batch = world()
    kept = batch.inputs.clone()
    Client(on_data=Transform("0")).observe(model, weights, batch, SEEDS)
    assert torch.equal(batch.inputs, kept)
    assert Client().transformed(batch, SEEDS) is batch


def test_every_round_draws_anew() -> None:
    model, weights, batch = world(1)
    seen = Client(on_data=Transform("3-15"), rounds=4).observe(model, weights, batch, SEEDS)
    sent = torch.stack([round_.sent["head.bias"] for round_ in seen.rounds])
    assert len(torch.unique(sent[:, 1], dim=0)) > 1


def test_a_trial_does_not_feel_its_neighbours() -> None:
    _, _, batch = world()
    client = Client(on_data=Transform("3-1-7", crop=2, flip=True))
    whole = client.transformed(batch, SEEDS).inputs
    alone = client.transformed(Batch(batch.inputs[1:2], batch.labels[1:2], batch.mask[1:2]), SEEDS[1:2]).inputs
    assert torch.equal(whole[1:2], alone)


def test_an_attacker_is_told_the_policy_only_with_the_defences_and_never_the_draws() -> None:
    model, weights, batch = world()
    client = Client(on_data=Transform("3-0"))
    knowledge = attacker_knowledge(model, client, batch)
    assert knowledge.policies is None
    aware = knowledge_of_defences(knowledge, client, client.observe(model, weights, batch, SEEDS))
    assert aware.policies == ((("translate_x", pytest.approx(0.4532, abs=1e-4)), ("invert", 0.0)),)


def test_a_table_cannot_be_transformed() -> None:
    data = load("breast_cancer")
    batch = make_batch(data.pictures("test", range(3))[:, None], data.labels("test", range(3))[:, None], classes=2)
    model = build("mlp", (30,), 2)
    weights = draw_parameters(model, Uniform(0.3), random.key(SEEDS))
    with pytest.raises(InputError, match="1 or 3 channels"):
        Client(on_data=Transform("3")).observe(model, weights, batch, SEEDS)
