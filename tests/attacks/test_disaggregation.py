"""Updates of single clients from sums over rounds: right where the answer is the only one, withheld where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.exact.disaggregation import as_update, disaggregate, sums_of
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import Observation, Round, make_batch
from leakscope.models import from_module
from leakscope.play import shared_weights

R, K, WINDOW = 20, 4, 4


def participation(seed: int = 0, rounds: int = R) -> Tensor:
    drawn = random.uniform(random.key(seed), (rounds, K), torch.float64)
    return (drawn < 0.5) | (drawn == drawn.amin(1, keepdim=True))  # nobody in a round: no sum


def counts_of(took_part: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in took_part.split(WINDOW)], 1)


def test_a_client_of_secure_sums_is_isolated_and_its_image_divided_out() -> None:
    torch.manual_seed(0)
    model = from_module(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), input_shape=(1, 4, 4)
    )
    images, labels = random.uniform(random.key(1), (K, 1, 4, 4)), torch.tensor([0, 1, 2, 0])
    took_part = participation()
    rounds = []
    for present in took_part:
        places = present.nonzero()[:, 0]
        batch = make_batch(images[None, places], labels[None, places], classes=3)
        rounds.append(Client(aggregate=len(places)).observe(model, shared_weights(model, 1), batch, [0]))
    found = disaggregate(sums_of(rounds), counts_of(took_part), window=WINDOW)
    assert found.unique.all()
    assert torch.equal(found.participation, took_part)
    assert found.updates is not None
    seen = rounds[0].rounds[0]
    for k in range(K):
        sent = as_update(found.updates[k], seen.sent)
        alone = Observation((Round(seen.before, seen.buffers, sent),), rounds[0].shares, torch.ones(1))
        knowledge = attacker_knowledge(model, Client(), make_batch(images[None, :1], labels[None, :1], classes=3))
        assert torch.allclose(Analytic().run(model, alone, knowledge, [0]).inputs[0, 0], images[k], atol=1e-3)


def test_updates_that_vary_between_rounds_are_found_as_their_means() -> None:
    took_part = participation(rounds=16)
    means = random.normal(random.key(2), (K, 50), torch.float64)
    noise = 0.1 * random.normal(random.key(3), (16, K, 50), torch.float64)
    sums = (took_part[..., None] * (means + noise)).sum(1)
    found = disaggregate(sums, counts_of(took_part), window=WINDOW)
    assert torch.equal(found.participation, took_part)
    assert found.updates is not None
    assert float((found.updates - means).norm() / means.norm()) < 0.1


@pytest.mark.parametrize("rounds", [K, K + 1])
def test_too_few_rounds_give_no_updates(rounds: int) -> None:
    took_part = participation(rounds=rounds)
    sums = took_part.double() @ random.normal(random.key(2), (K, 50), torch.float64)
    found = disaggregate(sums, counts_of(took_part), window=WINDOW)
    assert found.updates is None
    assert not found.unique.all()


def test_clients_with_equal_counts_cannot_be_told_apart() -> None:
    took_part = participation()
    took_part[:, 1] = took_part.reshape(-1, WINDOW, K).flip(1).reshape(R, K)[:, 0]
    sums = took_part.double() @ random.normal(random.key(2), (K, 50), torch.float64)
    found = disaggregate(sums, counts_of(took_part), window=WINDOW)
    assert found.unique.tolist()[:2] == [False, False]
    assert found.updates is None


def test_counts_of_other_clients_fit_no_participation_clearly() -> None:
    took_part = participation(rounds=12)
    sums = took_part.double() @ random.normal(random.key(2), (K, 50), torch.float64)
    wrong = counts_of(participation(seed=7, rounds=12))
    assert disaggregate(sums, wrong, window=WINDOW, seconds=0.3).updates is None
    with pytest.raises(InputError, match="counts"):
        disaggregate(sums, wrong[:, :2], window=WINDOW)
