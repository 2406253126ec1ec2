"""The mean update of K clients is one observation of all their examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.clients import Aggregation, Client, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import lift, norm, subtract, to
from leakscope.core.types import Batch, LocalTraining, direction, make_batch
from leakscope.defences import Clip, GaussianNoise, Sign, Sparsify, Transform
from leakscope.models import from_module
from leakscope.play import attack, expose, shared_weights

K, N, T = 3, 2, 2
SEEDS = [5, 9]


def network(hidden: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 3)).double()


def private_batch(*, mask: Tensor | None = None) -> Batch:
    inputs = random.uniform(random.key(3), (T, K * N, 1, 4, 4), torch.float64)
    return make_batch(inputs, torch.arange(T * K * N).reshape(T, K * N) % 3, classes=3, mask=mask)


def seen(client: Client, batch: Batch) -> dict[str, Tensor]:
    model = from_module(network(), input_shape=(1, 4, 4))
    observation = client.observe(model, shared_weights(model, T), batch, SEEDS)
    return direction(observation.rounds[-1], observation.shares)


def gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return float((lift(norm)(subtract(one, other)) / lift(norm)(other)).max())


@pytest.mark.parametrize("local", [None, LocalTraining(rate=0.1)])
def test_the_mean_of_gradients_is_the_gradient_of_the_joined_batch(local: LocalTraining | None) -> None:
    assert (
        gap(seen(Client(local=local, aggregate=K), private_batch()), seen(Client(local=local), private_batch())) < 1e-12
    )


def test_clients_of_unequal_size_count_by_their_examples() -> None:
    mask = torch.ones(T, K * N, dtype=torch.bool)
    mask[0, 1] = mask[1, 4] = False
    batch = private_batch(mask=mask)
    assert gap(seen(Client(aggregate=K), batch), seen(Client(), batch)) < 1e-12


def test_the_mean_of_weight_updates_is_that_of_the_clients_one_by_one() -> None:
    local = LocalTraining(epochs=3, batch_size=1, rate=0.3, shuffle=False)
    batch = private_batch()
    parts = []
    for k in range(K):
        part = slice(k * N, (k + 1) * N)
        parts.append(seen(Client(local=local), make_batch(batch.inputs[:, part], batch.labels[:, part], classes=3)))
    mean = {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
    together = seen(Client(local=local, aggregate=K), batch)
    assert gap(together, mean) < 1e-12
    steps = torch.arange(K * N).reshape(K, N).T.flatten()  # a step of the joined batch has one example of each client
    in_steps = make_batch(batch.inputs[:, steps], batch.labels[:, steps], classes=3)
    gaps = []
    for rate in (0.3, 1e-3):  # several steps are those of the joined batch to first order in the rate
        slower = replace(local, rate=rate)
        joined = seen(Client(local=replace(slower, batch_size=K)), in_steps)
        gaps.append(gap(seen(Client(local=slower, aggregate=K), batch), joined))
    assert gaps[0] > 0.1
    assert gaps[1] < 0.01


@pytest.mark.parametrize("local", [None, LocalTraining(epochs=2, batch_size=1, rate=0.3, shuffle=False)])
@pytest.mark.parametrize("skew", [1.0, 3.0])
def test_dropouts_and_unequal_clients_are_a_mean_over_a_loop_of_those_that_answer(
    local: LocalTraining | None, skew: float
) -> None:
    summed, batch = Aggregation(K, dropouts=1, skew=skew), private_batch()
    model = from_module(network(), input_shape=(1, 4, 4))
    exposure = expose(model, Client(local=local, aggregate=summed), shared_weights(model, T), batch, SEEDS)
    sizes, answering = summed.sizes(K * N), summed.answering(SEEDS)
    assert sizes == ([2, 2, 2] if skew == 1 else [1, 2, 3])
    assert answering.sum(1).tolist() == [K - 1] * T
    for t in range(T):
        total, truth, first = {}, [], 0
        for size, answers in zip(sizes, answering[t].tolist(), strict=True):
            place, first = slice(first, first + size), first + size
            if answers:
                inputs, labels = batch.inputs[:, place], batch.labels[:, place]
                one = seen(Client(local=local), make_batch(inputs, labels, classes=3))
                total = {name: total.get(name, 0) + size * value[t] for name, value in one.items()}
                truth.append(batch.inputs[t, place])
        expected, n = torch.cat(truth), sum(map(len, truth))
        assert int(exposure.observation.samples[t]) == n
        found = direction(exposure.observation.rounds[0], exposure.observation.shares)
        assert all(torch.allclose(found[name][t], value / n, rtol=0, atol=1e-12) for name, value in total.items())
        assert torch.equal(exposure.batch.inputs[t][exposure.batch.mask[t]], expected)


def test_which_clients_drop_out_differs_between_trials_and_the_rest_is_recovered() -> None:
    summed = Aggregation(K, dropouts=1)
    assert len({tuple(row) for row in summed.answering(range(40)).tolist()}) == K
    model = from_module(network(200), input_shape=(1, 4, 4))
    exposure = expose(model, Client(aggregate=summed), shared_weights(model, T), private_batch(), SEEDS)
    assert (exposure.knowledge.samples, exposure.knowledge.present) == ((K - 1) * N, None)
    assert bool(attack(exposure, Peeling(draws=0)).recovered.all())


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": 2, "dropouts": 2}, {"clients": 2, "skew": 0.5}])
def test_aggregations_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"Aggregation.{[*wrong][-1]}"):
        Aggregation(**wrong)  # type: ignore[arg-type]


def test_every_client_defends_itself_and_draws_its_own_noise() -> None:
    model = from_module(network(), input_shape=(1, 4, 4))
    clipped = seen(Client(defences=(Clip(1e-3),), aggregate=K), private_batch())
    assert bool((lift(norm)(clipped) < 1e-3).all())  # clipped one by one; their directions differ
    plain = seen(Client(aggregate=K), private_batch())
    strengths = torch.tensor([1.0, 5.0], dtype=torch.float64)  # one for each aggregate
    noisy = subtract(seen(Client(defences=(GaussianNoise(strengths),), aggregate=K), private_batch()), plain)
    spread = torch.cat([value.flatten(1) for value in noisy.values()], 1).std(1)
    assert torch.allclose(spread, strengths / K**0.5, rtol=0.2)
    client = Client(defences=(GaussianNoise(2.0), Sparsify(0.5)), aggregate=4)
    observation = replace(client, aggregate=1).observe(model, shared_weights(model, T), private_batch(), SEEDS)
    exposure = expose(model, Client(aggregate=K), shared_weights(model, T), private_batch(), SEEDS)
    facts = knowledge_of_defences(exposure.knowledge, client, observation)
    assert facts.sigma is not None
    assert facts.sigma.tolist() == [1.0, 1.0]
    assert facts.mask is not None


@pytest.mark.parametrize("defence", [Clip(1.0), Sign()])
def test_what_is_known_of_one_client_is_not_known_of_a_mean(defence: Clip | Sign) -> None:
    model = from_module(network(), input_shape=(1, 4, 4))
    client = Client(defences=(defence,), aggregate=K)
    exposure = expose(model, client, shared_weights(model, T), private_batch(), SEEDS)
    assert exposure.informed is not None
    assert (exposure.informed.bound, exposure.informed.bits) == (None, None)


def test_the_attacker_sees_one_client_of_all_examples() -> None:
    local = LocalTraining(epochs=2, batch_size=1, rate=0.1)
    model = from_module(network(), input_shape=(1, 4, 4))
    exposure = expose(model, Client(local=local, aggregate=K), shared_weights(model, T), private_batch(), SEEDS)
    assert (exposure.knowledge.samples, exposure.observation.samples.tolist()) == (K * N, [K * N, K * N])
    assert exposure.knowledge.local is not None
    assert exposure.knowledge.local.steps(K * N) == local.steps(N)
    assert float(exposure.knowledge.local.length([K * N])) == float(local.length([N]))


def test_a_wide_first_layer_gives_away_the_examples_of_all_clients() -> None:
    model = from_module(network(200), input_shape=(1, 4, 4))
    batch = private_batch()
    exposure = expose(model, Client(aggregate=K), shared_weights(model, T), batch, SEEDS)
    result = attack(exposure, Peeling())
    assert result.reconstruction.proved is not None
    assert int(result.reconstruction.proved.sum()) == T * K * N
    assert bool(result.recovered.all())


def test_rounds_move_all_clients_by_the_mean() -> None:
    model = from_module(network(), input_shape=(1, 4, 4))
    several = {"rounds": 2, "server_rate": 0.5}
    together = Client(**several, aggregate=K).observe(model, shared_weights(model, T), private_batch(), SEEDS)  # type: ignore[arg-type]
    alone = Client(**several).observe(model, shared_weights(model, T), private_batch(), SEEDS)  # type: ignore[arg-type]
    for one, other in zip(together.rounds, alone.rounds, strict=True):
        assert gap(one.before, other.before) < 1e-12
        assert gap(one.sent, other.sent) < 1e-12


def test_transformed_images_are_those_of_every_client() -> None:
    inputs = random.uniform(random.key(3), (T, K * N, 1, 8, 8))
    batch = make_batch(inputs, torch.zeros(T, K * N, dtype=torch.int64), classes=3)
    client = Client(on_data=Transform("3-1-7"), aggregate=K)
    shown = client.transformed(batch, SEEDS).inputs
    assert shown.shape == inputs.shape
    assert not torch.equal(to(shown, dtype=torch.float32), inputs)


@pytest.mark.parametrize("aggregate", [0, 1.5, 4])
def test_a_number_of_clients_that_does_not_fit_is_refused(aggregate: int) -> None:
    with pytest.raises(InputError, match="aggregate"):
        seen(Client(aggregate=aggregate), private_batch())
