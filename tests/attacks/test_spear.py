"""SPEAR: batches come back exactly where no unit has a sample alone, and nothing is certified that is no sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks import spear
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.exact.layer_probe import probe_network, read_layer
from leakscope.attacks.exact.ledger import Ledger, Peeled, Probe, Update, subtract
from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.attacks.exact.spear import unmix
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take, to
from leakscope.core.types import Batch, Observation, Outcome, Reconstruction, make_batch
from leakscope.data import load
from leakscope.defences import Clip, GaussianNoise
from leakscope.models import Torch, build, draw_parameters

torch.set_num_threads(1)
DATA = load("digits")
STANDARDISED = Client(scaling=Scaling((0.3,), (0.37,)))


def played(
    samples: int, client: Client, *, hidden: tuple[int, ...] = (80,), dtype: torch.dtype = torch.float64
) -> tuple[Model, Observation, Batch]:
    model = to(build("mlp", (1, 8, 8), 10, {"hidden": hidden}), dtype=dtype)
    labels = torch.as_tensor(DATA.labels("test", range(samples)))[None]
    batch = to(make_batch(DATA.pictures("test", range(samples))[None], labels, classes=10), dtype=dtype)
    weights = to(draw_parameters(model, Torch(), random.key([0])), dtype=dtype)
    return model, client.observe(model, weights, batch, [0]), batch


def check_batch(found: Reconstruction, batch: Batch, error: float) -> None:
    """Assert that every sample came back, proved, with its label."""
    assert found.proved is not None
    assert bool(found.proved.all())
    assert int(found.outcome) == Outcome.PROVED
    distances = squared_distances(batch.inputs[0].double(), found.inputs[0].double())
    paired = pair(distances)
    assert float(distances[torch.arange(batch.samples), paired].max()) <= error**2
    assert torch.equal(batch.labels[0], found.labels[0][paired])


@pytest.mark.parametrize(
    ("client", "dtype", "hidden"),
    [
        (STANDARDISED, torch.float64, (80,)),
        (STANDARDISED, torch.float32, (80, 40)),
        (replace(STANDARDISED, defences=(Clip(1e-2),)), torch.float64, (80,)),
        (replace(STANDARDISED, loss="mse"), torch.float64, (80,)),
    ],
)
def test_a_batch_is_unmixed_without_division(client: Client, dtype: torch.dtype, hidden: tuple[int, ...]) -> None:
    model, seen, batch = played(6, client, hidden=hidden, dtype=dtype)
    found = spear().run(model, seen, attacker_knowledge(model, client, batch), [0])
    check_batch(found, batch, 1e-8 if dtype is torch.float64 else 1e-4)


def test_what_peeling_left_is_unmixed() -> None:
    model, seen, batch = played(8, STANDARDISED)
    assert model.entry is not None
    knowledge = attacker_knowledge(model, STANDARDISED, batch)
    update, probe = read_layer(take(seen.rounds[0], 0), seen.shares, model, model.entry, knowledge)
    true = STANDARDISED.scaling.scale(batch.inputs[0], 3).flatten(1)
    left = subtract(Ledger.of(update), true[:3], batch.labels[0, :3], 1 / 8, probe).left
    peeled = Peeled(true[:3], batch.labels[0, :3], 1 / 8, left)
    end = unmix(update, peeled, probe, factor=1 / 8, samples=8, draws=1024, seed=0)
    paired = pair(squared_distances(true, end.inputs))
    assert_close(end.inputs[paired], true)
    assert torch.equal(end.labels[paired], batch.labels[0])
    assert float(end.rest.weight.norm() / update.weight.norm()) < 1e-12


@pytest.mark.parametrize("told", [5, 9])
def test_a_wrong_batch_size_is_fitted(told: int) -> None:
    """The factor 1 / N of the threat model explains nothing; the rank and the samples say the right one."""
    model, seen, batch = played(6, STANDARDISED)
    knowledge = replace(attacker_knowledge(model, STANDARDISED, batch), samples=told)
    for attack in (Peeling(draws=0), spear()):
        found = attack.run(model, seen, knowledge, [0])
        assert found.proved is not None
        distances = squared_distances(batch.inputs[0], found.inputs[0][found.proved[0]])
        assert float(distances.amin(0).max()) < 1e-16
        number = int(found.proved.sum())
    assert number == min(told, batch.samples)  # of SPEAR


def test_noise_and_copies_leave_nothing_certified() -> None:
    noisy = replace(STANDARDISED, defences=(GaussianNoise(1e-6),))
    model, seen, batch = played(4, noisy)
    found = spear(draws=256).run(model, seen, attacker_knowledge(model, noisy, batch), [0])
    assert found.proved is not None
    assert not bool(found.proved.any())
    twice = make_batch(batch.inputs[:, [0, 0, 1]], batch.labels[:, [0, 0, 1]], classes=10)
    weights = to(draw_parameters(model, Torch(), random.key([0])), dtype=torch.float64)
    seen = STANDARDISED.observe(model, weights, twice, [0])
    found = spear(draws=256).run(model, seen, attacker_knowledge(model, STANDARDISED, twice), [0])
    assert found.proved is not None
    assert not bool(found.proved.any())


def test_time_that_is_over_ends_the_search() -> None:
    model, seen, batch = played(6, STANDARDISED)
    asked: list[int] = []

    def over(number: int) -> bool:
        asked.append(number)
        return True

    execution = Execution(out_of_time=over)
    found = spear().run(model, seen, attacker_knowledge(model, STANDARDISED, batch), [0], execution)
    assert set(asked) == {0}
    assert len(asked) <= 3
    assert int(found.outcome) == Outcome.EXHAUSTED
    assert found.proved is not None
    assert not bool(found.proved.any())


def mixture(generator: torch.Generator, probe: Probe, samples: int, units: int) -> tuple[Update, Tensor]:
    """Return an update of sparse gradients that no network of ours has, and the images behind it."""
    off = torch.rand(units, samples, generator=generator, dtype=torch.float64) < 0.5
    pulls = torch.randn(units, samples, generator=generator, dtype=torch.float64) * ~off
    images = torch.rand(samples, 64, generator=generator, dtype=torch.float64)
    columns = torch.randn(units, 10, generator=generator, dtype=torch.float64)
    return Update(pulls @ images, pulls.sum(1), columns if probe.witness else None, torch.float64), images


@pytest.mark.parametrize("factor", [0.25, None])
def test_foreign_updates_certify_nothing(factor: float | None) -> None:
    """Directions are found, but the network says that such images have other gradients."""
    model, seen, batch = played(4, STANDARDISED)
    assert model.entry is not None
    knowledge = attacker_knowledge(model, STANDARDISED, batch)
    probe, _ = probe_network(take(seen.rounds[0], 0), model, model.entry, knowledge)
    for used in (probe, replace(probe, witness=None)):
        update, images = mixture(torch.Generator().manual_seed(1), used, 4, 80)
        end = unmix(update, Peeled.none(update), used, factor=factor, samples=8, draws=256, seed=0)
        assert len(end.inputs) == 0
        assert_close(end.rest.weight, update.weight)
        assert images.shape == (4, 64)
