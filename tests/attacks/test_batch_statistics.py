"""Batch statistics read from sent buffers, against the statistics that a slow loop computes from the private batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from leakscope.attacks.attack import Attack
from leakscope.attacks.batch_statistics import (
    BatchStatistics,
    read_batch_statistics,
    target_statistics,
)
from leakscope.attacks.distances import cosine
from leakscope.attacks.engine.forms import evaluate_one
from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import gradinversion, ig, peeling
from leakscope.attacks.view import Components, Facts
from leakscope.attacks.watched import Watched
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.padding import channel_statistics
from leakscope.core.tree import take, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.models import from_module
from leakscope.play import attack, expose, shared_weights

TRIALS, SAMPLES, SHAPE = 2, 4, (2, 6, 6)
SEEDS = [3, 4]


def network(momentum: float | None = 0.1, dtype: torch.dtype = torch.float64) -> Model:
    """Return a small network whose two batch norms see planes of 6 x 6 and 3 x 3, with statistics of earlier batches."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3, momentum=momentum), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=momentum), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip
    for _ in range(3):
        layers(torch.rand(5, *SHAPE))
    return from_module(layers.eval().to(dtype), input_shape=SHAPE)


def batch(dtype: torch.dtype = torch.float64) -> Batch:
    inputs = random.uniform(random.key([0, 1]), (SAMPLES, *SHAPE), dtype)
    return make_batch(inputs, torch.arange(TRIALS * SAMPLES).reshape(TRIALS, SAMPLES) % 3, classes=3)


def observed(model: Model, client: Client, data: Batch) -> tuple[Observation, Knowledge]:
    seen = client.observe(model, shared_weights(model, TRIALS), data, SEEDS)
    return seen, attacker_knowledge(model, client, data, labels=True)


def slow_statistics(model: Model, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """Return mean and biased variance of what enters each batch norm in train mode, by running the layers one by one."""
    values = []
    for place, layer in enumerate(model.apply.module):  # type: ignore[attr-defined]
        if isinstance(layer, nn.BatchNorm2d):
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            values += [mean, variance]
            x = (x - mean[:, None, None]) / (variance + layer.eps).sqrt()[:, None, None]
            x = x * parameters[f"{place}.weight"][:, None, None] + parameters[f"{place}.bias"][:, None, None]
        else:
            own = {n.partition(".")[2]: v for n, v in parameters.items() if n.startswith(f"{place}.")}
            x = torch.func.functional_call(layer, own, (x,))
    return values


@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_shows_the_statistics_of_the_batch(momentum: float | None, dtype: torch.dtype) -> None:
    model, data = network(momentum, dtype), batch(dtype)
    seen, knowledge = observed(model, Client(norm="train", sends_buffers=True), data)
    read = read_batch_statistics(model, seen, knowledge)
    for trial in range(TRIALS):
        slow = slow_statistics(model, model.parameters, data.inputs[trial])
        fast = [value for each in read.values() for value in (each.mean[trial], each.variance[trial])]
        for one, other in zip(fast, slow, strict=True):
            assert (one - other).abs().max() < 1e-6


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_several_steps_show_the_weighted_mean(momentum: float | None) -> None:
    model, data = network(momentum), batch()
    local = LocalTraining(epochs=3, batch_size=2, rate=0.05, shuffle=False)
    seen, knowledge = observed(model, Client(norm="train", sends_buffers=True, local=local), data)
    read = read_batch_statistics(model, seen, knowledge)
    steps = 6
    for trial in range(TRIALS):
        weights, values = dict(model.parameters), []
        for step in range(steps):
            rows = slice(0, 2) if step % 2 == 0 else slice(2, 4)
            values.append(slow_statistics(model, weights, data.inputs[trial, rows]))
            weights = _after_one_step(model, weights, data.inputs[trial, rows], data.labels[trial, rows])
        m = momentum or 0.0
        shares = [1 / steps] * steps if momentum is None else [m * (1 - m) ** (steps - 1 - i) for i in range(steps)]
        slow = [sum(s * v[i] for s, v in zip(shares, values, strict=True)) / sum(shares) for i in range(4)]
        fast = [value for each in read.values() for value in (each.mean[trial], each.variance[trial])]
        assert_close(fast, slow, rtol=1e-6, atol=1e-8)


def _after_one_step(
    model: Model, weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> dict[str, torch.Tensor]:
    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        trained = model.in_mode("train")
        return nn.functional.cross_entropy(trained.apply(parameters, model.buffers, x, random.key(0))[0], y)

    return {n: weights[n] - 0.05 * g for n, g in torch.func.grad(loss)(weights).items()}


def test_a_client_sends_its_buffers_only_if_it_says_so() -> None:
    model, data = network(), batch()
    silent, sending = (observed(model, Client(norm="train", sends_buffers=s), data)[0].rounds[0] for s in (False, True))
    assert silent.buffers_after is None
    assert sending.buffers_after is not None
    assert_close(silent.sent, sending.sent, rtol=0, atol=0)
    assert set(sending.buffers_after) == set(model.buffers)
    assert (sending.buffers_after["1.num_batches_tracked"] == sending.buffers["1.num_batches_tracked"] + 1).all()


def test_an_eval_mode_client_and_one_that_sends_nothing_leave_the_running_statistics() -> None:
    model, data = network(), batch()
    for client in (Client(sends_buffers=True), Client(norm="train")):
        seen, knowledge = observed(model, client, data)
        found = target_statistics(model.norms[0], take(seen.rounds[0], 0), knowledge)
        assert_close(found.mean, model.buffers["1.running_mean"])
        assert_close(found.variance, model.buffers["1.running_var"])


def test_steps_are_those_known_where_the_counter_was_not_sent() -> None:
    model, data = network(), batch()
    seen, knowledge = observed(model, Client(norm="train", sends_buffers=True), data)
    first = seen.rounds[0]
    kept = {n: v for n, v in (first.buffers_after or {}).items() if "tracked" not in n}
    short = replace(seen, rounds=(replace(first, buffers_after=kept),))
    for norm in model.norms:
        one, other = (target_statistics(norm, take(s.rounds[0], 0), knowledge) for s in (seen, short))
        assert_close((one.mean, one.variance), (other.mean, other.variance))


@pytest.mark.parametrize("harm", ["nan", "shape", "missing", "foreign"])
def test_wrong_buffers_are_refused_in_one_line(harm: str) -> None:
    model, data = network(), batch()
    seen, knowledge = observed(model, Client(norm="train", sends_buffers=True), data)
    after = dict(seen.rounds[0].buffers_after or {})
    value = after.pop("1.running_var")
    if harm != "missing":
        name = "9.running_var" if harm == "foreign" else "1.running_var"
        after[name] = value * torch.nan if harm == "nan" else value[:, :2] if harm == "shape" else value
    wrong = replace(seen, rounds=(replace(seen.rounds[0], buffers_after=after),))
    with pytest.raises(InputError) as problem:
        read_batch_statistics(model, wrong, knowledge)
    assert "\n" not in str(problem.value)
    if harm != "missing":  # an attack can do without them
        with pytest.raises(InputError, match="running_var"):
            ig(iterations=1).run(model, wrong, knowledge, SEEDS)


def test_the_prior_is_zero_at_the_truth_and_has_the_slow_value_elsewhere() -> None:
    model, data = network().in_mode("train"), batch()
    seen, knowledge = observed(model, Client(sends_buffers=True), data)
    one, known = take(seen, 0), take(knowledge, 0)
    read = read_batch_statistics(model, seen, knowledge)

    def penalty(x: torch.Tensor) -> torch.Tensor:
        with_prior, without = (
            evaluate_one(
                model,
                {GUESS: x},
                Facts(one, known, Components(Watched(), Match(cosine), priors), random.key(0)),
                torch.tensor(0),
            )[1]
            for priors in ((BatchStatistics(0.5),), ())
        )
        return with_prior - without

    assert penalty(data.inputs[0]) < 1e-8
    x = data.inputs[1]
    slow = slow_statistics(model, model.parameters, x)
    targets = [value[0] for each in read.values() for value in (each.mean, each.variance)]
    assert_close(penalty(x), 0.5 * sum((s - t).norm() for s, t in zip(slow, targets, strict=True)))


def test_statistics_count_real_examples_alone() -> None:
    x = random.normal(random.key(1), (3, 4, 2, 2), torch.float64)
    mean, variance, count = channel_statistics(x, torch.tensor([True, False, True]))
    assert_close(mean, x[[0, 2]].mean((0, 2, 3)))
    assert_close(variance, x[[0, 2]].var((0, 2, 3), unbiased=False))
    assert int(count) == 8


def test_the_attacker_may_assume_another_mode_than_the_clients() -> None:
    model, data = to(network(), dtype=torch.float32), batch(torch.float32)
    weights = shared_weights(model, TRIALS)
    ends = {}
    for client, assumed in (("train", None), ("train", "train"), ("train", "eval"), ("eval", None)):
        exposure = expose(model, Client(norm=client), weights, data, SEEDS, labels=True, norm=assumed)  # type: ignore[arg-type]
        ends[client, assumed] = attack(exposure, ig(iterations=2)).reconstruction.mismatch
    assert torch.equal(ends["train", None], ends["train", "train"])
    assert not torch.equal(ends["train", None], ends["train", "eval"])
    assert not torch.equal(ends["train", None], ends["eval", None])


MEANS = "1.running_mean"
FOREIGN = {
    "no buffer of": lambda tree: {**tree, "7.running_mean": tree[MEANS]},
    "must be": lambda tree: {**tree, MEANS: tree[MEANS][:, :2]},
    "NaN": lambda tree: {**tree, MEANS: tree[MEANS] * torch.nan},
}


@pytest.mark.parametrize("recipe", [ig, gradinversion, peeling])
@pytest.mark.parametrize("part", ["buffers", "buffers_after"])
@pytest.mark.parametrize("words", FOREIGN)
def test_buffers_of_another_network_are_refused_in_one_line(
    recipe: Callable[[], Attack], part: str, words: str
) -> None:
    model, data = network(), batch()
    seen, knowledge = observed(model, Client(sends_buffers=True), data)
    foreign = {part: FOREIGN[words](getattr(seen.rounds[0], part))}
    seen = replace(seen, rounds=(replace(seen.rounds[0], **foreign),))
    with pytest.raises(InputError, match=rf"{part}.*running_mean.*{words}|{part}.*{words}") as caught:
        recipe().run(model, seen, knowledge, SEEDS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("part", "name"), [("sent", "0.bias"), ("before", "4.weight"), ("buffers", MEANS)])
def test_what_an_observation_lacks_is_named(part: str, name: str) -> None:
    model, data = network(), batch()
    seen, knowledge = observed(model, Client(), data)
    tree = {each: value for each, value in getattr(seen.rounds[0], part).items() if each != name}
    seen = replace(seen, rounds=(replace(seen.rounds[0], **{part: tree}),))
    with pytest.raises(InputError, match=rf"lacks '{name}'"):
        ig().run(model, seen, knowledge, SEEDS)
