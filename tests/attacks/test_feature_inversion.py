"""Features behind convolutions come back exactly with their labels, only where they are the layer's own, and give images."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks import prior_only
from leakscope.attacks.exact.layer_probe import feature_layer
from leakscope.attacks.exact.peel_attack import LayerInputs, Peeling
from leakscope.attacks.feature_inversion import PROVED, feature_inversion
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise
from leakscope.models import from_module

torch.set_num_threads(1)
DATA = load("digits")


def convolutional(*behind: nn.Module, norm: bool = False, hidden: int = 120) -> nn.Sequential:
    torch.manual_seed(0)
    before = [nn.Conv2d(1, 6, 3, padding=1), *([nn.BatchNorm2d(6)] if norm else []), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*before, nn.Flatten(), nn.Linear(96, hidden), *behind, nn.ReLU(), nn.Linear(hidden, 10))


def digits(samples: int) -> Batch:
    inputs, labels = DATA.pictures("test", range(samples)), torch.as_tensor(DATA.labels("test", range(samples)))
    return make_batch(inputs[None], labels[None], classes=10)


class Case(NamedTuple):
    model: Model
    batch: Batch
    seen: Observation
    knowledge: Knowledge


def played(module: nn.Module, samples: int, client: Client | None = None, dtype: torch.dtype = torch.float32) -> Case:
    client = client or Client()
    model, batch = to((from_module(module, input_shape=(1, 8, 8)), digits(samples)), dtype=dtype)
    weights = {name: value[None] for name, value in model.parameters.items()}
    seen = client.observe(model, weights, batch, [0])
    return Case(model, batch, seen, attacker_knowledge(model, client, batch))


def read(case: Case) -> tuple[LayerInputs, Tensor]:
    """Return what peeling reads, and the true features."""
    layer = feature_layer(case.model)
    assert layer is not None
    found = Peeling().read(case.model, layer, case.seen, case.knowledge, [0])
    with noting([layer.layer]) as inputs:
        case.model.apply(case.model.parameters, case.model.buffers, case.batch.inputs[0], random.key(0))
    features = inputs[layer.layer]
    assert features is not None
    return found, features


@pytest.mark.parametrize("local", [None, LocalTraining(rate=0.1)], ids=["gradient", "weights"])
def test_features_of_every_sample_are_proved_with_their_labels(local: LocalTraining | None) -> None:
    case = played(convolutional(), 4, Client(local=local), torch.float32 if local is None else torch.float64)
    found, features = read(case)
    assert bool(found.proved.all())
    distances = torch.cdist(features.double(), found.inputs[0].double()) / features.norm(dim=1, keepdim=True)
    assert float(distances.amin(1).max()) < 1e-3
    assert torch.equal(case.batch.labels[0], found.labels[0][distances.argmin(1)])


@pytest.mark.parametrize("samples", [1, 3])
def test_samples_of_distinct_labels_are_read_from_a_head_that_alone_is_trained(samples: int) -> None:
    module = convolutional()
    for layer in list(module)[:-1]:
        layer.requires_grad_(False)
    case = played(module, samples)
    assert len(set(case.batch.labels[0].tolist())) == samples
    found, features = read(case)
    assert bool(found.proved.all())
    distances = torch.cdist(features.double(), found.inputs[0].double())
    assert float((distances.amin(1) / features.norm(dim=1)).max()) < 1e-4
    assert torch.equal(case.batch.labels[0], found.labels[0][distances.argmin(1)])


def test_more_samples_than_half_the_classes_are_not_proved_from_a_head() -> None:
    module = convolutional()
    for layer in list(module)[:-1]:
        layer.requires_grad_(False)
    assert not bool(read(played(module, 6))[0].proved.any())


def test_an_update_of_zeros_gives_no_features() -> None:
    case = played(convolutional(), 2)
    first = case.seen.rounds[0]
    dead = replace(case.seen, rounds=(replace(first, sent={n: torch.zeros_like(v) for n, v in first.sent.items()}),))
    with pytest.raises(InputError):
        feature_inversion(iterations=1).run(case.model, dead, case.knowledge, [0])


def test_noise_proves_no_features() -> None:
    found, _ = read(played(convolutional(), 4, Client(defences=(GaussianNoise(1e-3),))))
    assert not bool(found.proved.any())


def test_batch_norm_in_train_mode_is_harmless_before_the_layer_and_excludes_it_behind() -> None:
    before = torch.func.replace_all_batch_norm_modules_(convolutional(norm=True))
    case = played(before, 4, Client(norm="train"))
    trained = case.model.in_mode("train")
    layer = feature_layer(trained)
    assert layer is not None
    assert layer.weight == "5.weight"
    assert bool(Peeling().read(trained, layer, case.seen, case.knowledge, [0]).proved.all())
    behind = from_module(convolutional(nn.BatchNorm1d(120)).eval(), input_shape=(1, 8, 8))
    found = feature_layer(behind.in_mode("train"))
    assert found is not None
    assert found == behind.head


class Bypassed(nn.Module):
    """A dense layer with a way around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense, self.head = nn.Conv2d(1, 2, 3), nn.Linear(72, 72), nn.Linear(72, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).flatten(1)
        return self.head(x + torch.relu(self.dense(x)))  # type: ignore[no-any-return]


def test_a_layer_with_a_way_around_it_is_passed_over() -> None:
    model = from_module(Bypassed(), input_shape=(1, 8, 8))
    assert [each.layer for each in model.dense] == ["dense", "head"]
    assert feature_layer(model) == model.head


def test_a_network_that_begins_with_its_only_dense_layer_is_refused() -> None:
    case = played(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 2)
    with pytest.raises(InputError):
        feature_inversion(iterations=1).run(case.model, case.seen, case.knowledge, [0])


@pytest.mark.parametrize("gradient", [0.0, 1.0])
def test_images_from_features_beat_the_null_baseline(gradient: float) -> None:
    case = played(convolutional(), 2)
    result = feature_inversion(iterations=60, gradient=gradient, tv=1e-3).run(
        case.model, case.seen, case.knowledge, [0]
    )
    null = prior_only(iterations=60).run(case.model, case.seen, case.knowledge, [0])
    order = [0, 1] if torch.equal(result.labels, case.batch.labels) else [1, 0]

    def error(inputs: Tensor) -> float:
        return float((inputs - case.batch.inputs).square().mean())

    assert error(result.inputs[:, order]) < 0.3 * error(null.inputs)
    assert result.learned[PROVED].tolist() == [1.0]
    assert result.proved is None
