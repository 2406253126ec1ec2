"""Imprint gives back exactly the samples that are alone in their bin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.types import Batch, LocalTraining, Round
from leakscope.models import build
from leakscope.play import attack
from leakscope.servers.imprint import Functional, Imprint, brightness, cosine_mode, random_direction
from manipulated import SHAPE, batch_of, exact, exposed, small_mlp

INSERTED = Imprint(inserted=48)
SPARSE = Imprint(inserted=48, sparse=True)


def alone(model: Model, seen: Round, batch: Batch) -> torch.Tensor:
    """Return which samples share the set of units that they activate with no other sample, T x N."""
    assert model.entry is not None
    weight, bias = seen.before[model.entry.weight], seen.before[str(model.entry.bias)]
    sums = batch.inputs.flatten(2) @ weight.mT + bias[:, None]
    bins = (sums > 0).sum(2)
    return (bins[:, :, None] == bins[:, None]).sum(2) == 1


@pytest.mark.parametrize("functional", [brightness, cosine_mode, random_direction])
def test_a_sample_alone_in_its_bin_comes_back_exactly(functional: Functional) -> None:
    manipulation, batch = Imprint(functional=functional), batch_of(3, 12)
    seen = exposed(manipulation, small_mlp(), batch)
    result = attack(seen, manipulation).reconstruction
    expected = alone(seen.model, seen.observation.rounds[0], batch)
    assert torch.equal(exact(batch, result), expected)
    assert 0.5 < expected.double().mean() < 1


@pytest.mark.parametrize("manipulation", [INSERTED, SPARSE], ids=["relu", "hardtanh"])
def test_inserted_units_read_a_batch_before_a_convolution(manipulation: Imprint) -> None:
    model, batch = build("lenet_dlg", SHAPE, 4), batch_of(2, 12)
    assert model.entry is None
    seen = exposed(manipulation, model, batch)
    result = attack(seen, manipulation).reconstruction
    assert torch.equal(exact(batch, result), alone(seen.model, seen.observation.rounds[0], batch))


def test_the_scaling_of_the_client_is_undone() -> None:
    batch = batch_of(1, 12)
    seen = exposed(Imprint(), small_mlp(), batch, Client(scaling=Scaling(mean=(0.1,), std=(0.9,))))
    assert exact(batch, attack(seen, Imprint()).reconstruction).double().mean() > 0.5


def test_sparse_bins_survive_local_steps_in_float32() -> None:
    model, batch = build("lenet_dlg", SHAPE, 4), batch_of(2, 12)
    client = Client(local=LocalTraining(epochs=2, batch_size=4, rate=1.0))

    def recall(manipulation: Imprint) -> float:
        result = attack(exposed(manipulation, model, batch, client), manipulation).reconstruction
        return float(exact(batch, result).double().mean())

    assert recall(SPARSE) > max(0.5, recall(INSERTED))
    assert recall(replace(SPARSE, shrink=1.0)) < 0.2  # rounding of the shared weights


def test_one_shot_takes_one_sample_of_a_large_batch() -> None:
    manipulation, batch = Imprint(one_shot=64), batch_of(12, 64)
    found = exact(batch, attack(exposed(manipulation, small_mlp(), batch), manipulation).reconstruction).sum(1)
    assert int(found.max()) == 1
    assert 1 <= int(found.sum()) <= 9  # 12 / e expected


def test_honest_weights_of_inserted_units_change_nothing() -> None:
    model, x = build("lenet_dlg", SHAPE, 4), batch_of(1, 2).inputs[0]
    network = INSERTED.extend(model)
    key = torch.tensor(0)
    assert torch.equal(network.apply(network.parameters, {}, x, key)[0], model.apply(model.parameters, {}, x, key)[0])


@pytest.mark.parametrize(
    "model",
    [build("lenet_dlg", SHAPE, 4), build("mlp", SHAPE, 4, {"activation": "sigmoid"}), build("linear", SHAPE, 4)],
)
def test_a_network_that_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match=r"imprint .*"):
        exposed(Imprint(), model, batch_of(1, 4))


def test_settings_without_effect_are_refused() -> None:
    for settings in ({"sparse": True}, {"inserted": 1}, {"one_shot": 1}, {"shrink": 0.0}):
        with pytest.raises(InputError):
            Imprint(**settings)
