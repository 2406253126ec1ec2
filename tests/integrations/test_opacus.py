"""DP-SGD clients do what Opacus does, example by example; their epsilon is what dp-accounting says."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from leakscope.clients import Client
from leakscope.clients.private import PrivateClient, private_gradient
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import norm, take
from leakscope.core.types import LocalTraining, make_batch
from leakscope.defences import Clip, GaussianNoise
from leakscope.integrations.opacus import ACCOUNTANTS, epsilon, epsilon_of, multiplier_for
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import from_module

SETTINGS = [(1.0, 0.01, 1000), (0.7, 0.1, 50), (2.0, 1.0, 10), (4.0, 0.2, 200)]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(InputError, match=r'pip install "leakscope\[dp\]"'):
        epsilon(multiplier=1.0, rate=0.1, steps=1, delta=1e-5)


@pytest.fixture
def opacus() -> Any:
    pytest.importorskip("opacus")
    return importlib.import_module("opacus")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4))


def data(number: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(number, 1, 4, 4, generator=generator), torch.randint(4, (number,), generator=generator)


def ours(
    x: torch.Tensor, y: torch.Tensor, *, bound: float, multiplier: float, seed: int = 0
) -> dict[str, torch.Tensor]:
    model = from_module(net(), input_shape=(1, 4, 4))
    mask = torch.ones(len(x), dtype=torch.bool)
    return private_gradient(
        model, cross_entropy, model.parameters, model.buffers, x, one_hot(y, 4, x.dtype), mask, random.key(seed),
        bound=bound, multiplier=multiplier, size=len(x),
    )  # fmt: skip


@pytest.mark.parametrize("bound", [0.05, 0.7, 100.0])
def test_clipped_gradients_are_those_of_opacus(opacus: Any, bound: float) -> None:
    x, y = data()
    optimisers = importlib.import_module("opacus.optimizers")
    module = opacus.GradSampleModule(net())
    plain = torch.optim.SGD(module.parameters(), lr=1.0)
    private = optimisers.DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=bound, expected_batch_size=len(x))
    nn.functional.cross_entropy(module(x), y).backward()
    private.pre_step()
    theirs = {name.removeprefix("_module."): value.grad for name, value in module.named_parameters()}
    made = ours(x, y, bound=bound, multiplier=0.0)
    assert set(made) == set(theirs)
    for name, value in made.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accountant", sorted(ACCOUNTANTS))
@pytest.mark.parametrize("delta", [0.5, 0.9])
def test_epsilon_is_never_below_zero(opacus: Any, accountant: str, delta: float) -> None:
    assert epsilon(multiplier=50.0, rate=0.01, steps=1, delta=delta, accountant=accountant) == 0
    assert epsilon(multiplier=50.0, rate=0.01, steps=1, delta=1e-9, accountant=accountant) > 0


def test_no_example_moves_the_sum_by_more_than_the_bound() -> None:
    x, y = data()
    whole = ours(x, y, bound=0.1, multiplier=0.0)
    for gone in range(len(x)):
        left = [i for i in range(len(x)) if i != gone]
        part = ours(x[left], y[left], bound=0.1, multiplier=0.0)
        moved = {n: whole[n] * len(x) - part[n] * len(left) for n in whole}
        assert float(norm(moved)) <= 0.1 * (1 + 1e-5)


def test_the_noise_has_the_deviation_that_is_accounted_for() -> None:
    x, y = data()
    still = ours(x, y, bound=0.5, multiplier=0.0)
    noise = torch.cat(
        [
            (value - still[name]).flatten()
            for seed in range(60)
            for name, value in ours(x, y, bound=0.5, multiplier=2.0, seed=seed).items()
        ]
    )
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / len(x), rel=0.03)
    assert abs(float(noise.mean())) < 5 * float(noise.std()) / math.sqrt(len(noise))


def test_steps_of_a_private_client_are_private_gradients_in_a_row() -> None:
    model = from_module(net(), input_shape=(1, 4, 4))
    x, y = data(8)
    batch = make_batch(x.unflatten(0, (2, 4)), y.unflatten(0, (2, 4)), classes=4)
    weights = {n: v.expand(2, *v.shape) for n, v in model.parameters.items()}
    client = PrivateClient(bound=0.3, multiplier=1.5, local=LocalTraining(epochs=3, rate=0.2))
    seen = client.observe(model, weights, batch, [5, 6])
    now = dict(model.parameters)
    key = random.fold(random.key([5, 6]), "private client")[1]
    for step in range(3):
        g = private_gradient(
            model, cross_entropy, now, {}, batch.inputs[1], one_hot(batch.labels[1], 4, x.dtype), batch.mask[1],
            random.fold(key, step), bound=0.3, multiplier=1.5, size=4,
        )  # fmt: skip
        now = {n: now[n] - 0.2 * g[n] for n in now}
    sent = take(seen.rounds[0].sent, 1)
    for name in now:
        torch.testing.assert_close(sent[name], now[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bound", [0.05, 100.0])
def test_one_gradient_of_one_example_is_a_clip_and_noise_on_the_update(bound: float) -> None:
    """What docs/how-to/dp-sgd.md says to give to an audit."""
    model = from_module(net(), input_shape=(1, 4, 4))
    x, y = data(1)
    T = 60
    batch = make_batch(x.expand(T, 1, 1, 4, 4), y.expand(T, 1), classes=4)
    weights = {n: v.expand(T, *v.shape) for n, v in model.parameters.items()}
    seeds = list(range(T))
    clipped = [
        client.observe(model, weights, batch, seeds).rounds[0].sent
        for client in (PrivateClient(bound=bound, multiplier=0.0), Client(defences=(Clip(bound),)))
    ]
    spread = [
        client.observe(model, weights, batch, seeds).rounds[0].sent
        for client in (
            PrivateClient(bound=bound, multiplier=2.0),
            Client(defences=(Clip(bound), GaussianNoise(2.0 * bound))),
        )
    ]
    for name, value in clipped[0].items():
        torch.testing.assert_close(value, clipped[1][name])
    for sent in spread:
        noise = torch.cat([(value - clipped[0][name]).flatten() for name, value in sent.items()])
        assert float(noise.std()) == pytest.approx(2.0 * bound, rel=0.03)


def test_examples_join_by_chance_at_the_rate_that_is_accounted_for() -> None:
    model = from_module(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), input_shape=(1, 4, 4))
    x, y = data(1)
    T, N = 300, 8
    batch = make_batch(x.expand(T, N, 1, 4, 4), y.expand(T, N), classes=4)
    weights = {n: v.expand(T, *v.shape) for n, v in model.parameters.items()}
    client = PrivateClient(bound=1e-3, multiplier=0.0, local=LocalTraining(batch_size=2, rate=1.0))
    assert client.rate(N) == 0.25
    assert client.steps(N) == 4
    one = PrivateClient(bound=1e-3, multiplier=0.0, local=LocalTraining(batch_size=2, rate=1.0, epochs=1))
    seen = one.observe(model, weights, batch, list(range(T)))
    change = {n: seen.rounds[0].before[n] - seen.rounds[0].sent[n] for n in seen.rounds[0].sent}
    length = torch.stack([norm(take(change, t)) for t in range(T)])  # equal examples: every one adds bound / 2
    joined = length / 1e-3 * 2
    assert float(joined.mean()) == pytest.approx(4 * N * 0.25, rel=0.1)
    assert float(joined.var()) == pytest.approx(4 * N * 0.25 * 0.75, rel=0.4)


@pytest.mark.parametrize(
    "settings",
    [
        {"bound": 0.0},
        {"multiplier": -1.0},
        {"local": LocalTraining(optimiser="adam")},
        {"local": LocalTraining(momentum=0.9)},
        {"loss": "hinge"},
    ],
)
def test_what_cannot_be_private_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        PrivateClient(**settings)


# -- epsilon


@pytest.mark.parametrize(("multiplier", "rate", "steps"), SETTINGS)
def test_rdp_epsilon_is_that_of_dp_accounting(opacus: Any, multiplier: float, rate: float, steps: int) -> None:
    accounting = pytest.importorskip("dp_accounting")
    rdp = importlib.import_module("dp_accounting.rdp")
    event = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(multiplier))
    theirs = rdp.RdpAccountant().compose(event, steps).get_epsilon(1e-5)
    made = epsilon(multiplier=multiplier, rate=rate, steps=steps, delta=1e-5, accountant="rdp")
    assert made == pytest.approx(theirs, rel=0.03)


@pytest.mark.parametrize(("multiplier", "rate", "steps"), SETTINGS)
def test_prv_epsilon_is_that_of_dp_accounting_and_tighter(
    opacus: Any, multiplier: float, rate: float, steps: int
) -> None:
    accounting = pytest.importorskip("dp_accounting")
    pld = importlib.import_module("dp_accounting.pld")
    event = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(multiplier))
    theirs = pld.PLDAccountant().compose(event, steps).get_epsilon(1e-5)
    made = epsilon(multiplier=multiplier, rate=rate, steps=steps, delta=1e-5, accountant="prv")
    assert made == pytest.approx(theirs, rel=0.02, abs=0.02)
    assert made <= epsilon(multiplier=multiplier, rate=rate, steps=steps, delta=1e-5, accountant="rdp") + 0.02


@pytest.mark.parametrize("accountant", sorted(ACCOUNTANTS))
def test_more_noise_and_fewer_rounds_give_less_epsilon(opacus: Any, accountant: str) -> None:
    def of(multiplier: float, rounds: int) -> float:
        client = PrivateClient(multiplier=multiplier, local=LocalTraining(epochs=1, batch_size=8))
        return epsilon_of(client, samples=64, delta=1e-4, rounds=rounds, accountant=accountant)

    assert of(2.0, 5) < of(1.0, 5) < of(1.0, 10)
    assert of(0.0, 1) == math.inf


def test_the_multiplier_that_is_asked_for_reaches_its_epsilon(opacus: Any) -> None:
    made = multiplier_for(target=3.0, rate=0.1, steps=100, delta=1e-5, accountant="rdp")
    at = epsilon(multiplier=made, rate=0.1, steps=100, delta=1e-5, accountant="rdp")
    assert at <= 3.0
    assert at == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize(
    "changed", [{"rate": 0.0}, {"rate": 1.5}, {"steps": 0}, {"delta": 1.0}, {"accountant": "moments"}]
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"multiplier": 1.0, "rate": 0.1, "steps": 10, "delta": 1e-5} | changed
    with pytest.raises(InputError):
        epsilon(**settings)
