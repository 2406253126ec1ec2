"""Samples of secure sums over rounds: what is certified is a sample, what is linked shares a client."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.exact.sratta import Linked, link_samples
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.types import LocalTraining, make_batch
from leakscope.models import from_module
from leakscope.play import shared_weights

K, N = 3, 4
LOCAL = LocalTraining(batch_size=2, rate=2.0)


def network() -> Model:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 4))
    return from_module(layers.double(), input_shape=(1, 8, 8))


def linked(*, local: LocalTraining | None = LOCAL, server_rate: float = 1.0) -> tuple[Linked, Tensor]:
    """Return the linked samples and for each the place of the sample it is (-1: none)."""
    model = network()
    inputs = random.uniform(random.key(0), (1, K * N, 1, 8, 8), torch.float64) ** 4
    batch = make_batch(inputs, torch.arange(K * N)[None] % 4, classes=4)
    client = Client(local=local, rounds=4, server_rate=server_rate, aggregate=K)
    seen = client.observe(model, shared_weights(model, 1), batch, [0])
    found = link_samples(model, seen, attacker_knowledge(model, client, batch))
    distance, place = squared_distances(inputs[0], found.inputs).sqrt().min(0)
    return found, place.where(distance < 1e-6, -1)


def test_certified_samples_are_true_and_linked_ones_share_a_client() -> None:
    found, place = linked()
    assert len(place) >= K * N // 2
    assert len(place) == len(place.unique())
    assert int(place.min()) >= 0
    assert int(found.rounds.min()) >= 2
    first, second = (found.clients[:, None] == found.clients).triu(1).nonzero().mT
    assert len(first) >= K
    assert torch.equal(place[first] // N, place[second] // N)


def test_one_gradient_a_round_wakes_no_sample_and_links_none() -> None:
    found, place = linked(local=None, server_rate=0.3)
    assert len(place) > 0
    assert int(place.min()) >= 0
    assert len(found.clients.unique()) == len(place)


def test_rounds_with_the_same_weights_certify_nothing() -> None:
    found, _ = linked(server_rate=0.0)
    assert len(found.inputs) == 0


def test_a_network_without_a_first_dense_layer_is_refused() -> None:
    model = from_module(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)), input_shape=(1, 8, 8)
    )
    batch = make_batch(torch.rand(1, 2, 1, 8, 8), torch.zeros(1, 2, dtype=torch.int64), classes=4)
    seen = Client().observe(model, shared_weights(model, 1), batch, [0])
    with pytest.raises(InputError, match="first dense layer"):
        link_samples(model, seen, attacker_knowledge(model, Client(), batch))
