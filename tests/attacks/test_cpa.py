"""The cocktail party attack unmixes batches without zeros, ends by itself, and is proved only where the update certifies the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.attacks.cpa import Cocktail, cpa
from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.exact.layer_probe import read_layer
from leakscope.attacks.exact.newton import solve_batch
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.tree import take
from leakscope.core.types import Batch, Knowledge, Observation, Outcome, make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise
from leakscope.models import Torch, build, draw_parameters, from_module

torch.set_num_threads(1)
DATA = load("digits")
TANH = build("mlp", (1, 8, 8), 10, {"hidden": (60,), "activation": "tanh"})


def played(model: Model, samples: int, client: Client | None = None) -> tuple[Batch, Observation, Knowledge]:
    inputs, labels = DATA.pictures("test", range(samples)), torch.as_tensor(DATA.labels("test", range(samples)))
    batch, client = make_batch(inputs[None], labels[None], classes=10), client or Client()
    seen = client.observe(model, draw_parameters(model, Torch(), random.key([0])), batch, [0])
    return batch, seen, attacker_knowledge(model, client, batch)


def error(batch: Batch, inputs: Tensor) -> float:
    """Return the root mean square over the batch, best paired."""
    distances = squared_distances(batch.inputs[0], inputs[0])
    return float(distances.gather(1, pair(distances)[:, None]).mean().sqrt())


def test_sources_of_a_mixture_come_back_with_sign_and_scale() -> None:
    """Independent sparse sources through a mixing of both signs: the bias gradient gives the factor, whatever its sign."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.rand(3, 2000, generator=generator, dtype=torch.float64) ** 8
    mixing = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    knowledge = Knowledge((2000,), 10, 3)
    found = Cocktail(iterations=400).unmix(mixing @ sources, mixing.sum(1), knowledge)
    alike = torch.corrcoef(torch.cat([sources, found.inputs]))[:3, 3:]
    assert float(alike.amax(1).min()) > 0.99
    assert sorted(alike.argmax(1).tolist()) == [0, 1, 2]
    nearest = found.inputs[alike.argmax(1)]
    assert float(((nearest - sources).norm(dim=1) / sources.norm(dim=1)).max()) < 0.1


def test_a_batch_of_tanh_units_is_proved_from_the_sources() -> None:
    batch, seen, knowledge = played(TANH, 3)
    found = cpa().run(TANH, seen, knowledge, [0])
    assert found.outcome.tolist() == [Outcome.PROVED]
    assert found.proved is not None
    assert bool(found.proved.all())
    assert error(batch, found.inputs) < 1e-5 < error(batch, Analytic().run(TANH, seen, knowledge, [0]).inputs)
    paired = pair(squared_distances(batch.inputs[0], found.inputs[0]))
    assert torch.equal(batch.labels[0], found.labels[0][paired])


def test_noise_and_foreign_weights_prove_nothing() -> None:
    batch, seen, knowledge = played(TANH, 3, Client(defences=(GaussianNoise(1e-3),)))
    found = cpa(iterations=20).run(TANH, seen, knowledge, [0])
    assert found.proved is not None
    assert not bool(found.proved.any())
    truth = batch.inputs[0].flatten(1).double()
    update, probe = read_layer(take(seen.rounds[0], 0), seen.shares, TANH, TANH.entry, knowledge)  # type: ignore[arg-type]
    assert solve_batch(update, truth, 1 / 3, probe, 10) is None


def test_as_many_samples_as_half_the_units_are_not_solved() -> None:
    narrow = build("mlp", (1, 8, 8), 10, {"hidden": (7,), "activation": "tanh"})
    batch, seen, knowledge = played(narrow, 4)
    update, probe = read_layer(take(seen.rounds[0], 0), seen.shares, narrow, narrow.entry, knowledge)  # type: ignore[arg-type]
    assert solve_batch(update, batch.inputs[0].flatten(1).double(), 1 / 4, probe, 10) is None


def test_without_a_bias_sources_fill_the_box_and_nothing_is_proved() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 60, bias=False), nn.Tanh(), nn.Linear(60, 10))
    model = from_module(module, input_shape=(1, 8, 8))
    batch, seen, knowledge = played(model, 3)
    found = cpa(iterations=200).run(model, seen, knowledge, [0])
    assert error(batch, found.inputs) < error(batch, torch.full_like(batch.inputs, 0.5))
    assert float(found.inputs.max()) < 1 + 1e-5
    assert found.proved is not None
    assert not bool(found.proved.any())


def test_the_search_says_whether_it_settled() -> None:
    _, seen, knowledge = played(TANH, 2, Client(defences=(GaussianNoise(1e-3),)))
    short, full = (cpa(iterations=n).run(TANH, seen, knowledge, [0]) for n in (2, 4000))
    assert short.outcome.tolist() == [Outcome.EXHAUSTED]
    assert full.outcome.tolist() == [Outcome.CONVERGED]
    assert float(full.mismatch) <= float(short.mismatch)
