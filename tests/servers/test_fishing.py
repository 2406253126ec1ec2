"""Fishing leaves one sample of a batch in the update, which an attack on one sample then reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakscope.attacks import Matching, idlg, ig
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Batch, LocalTraining
from leakscope.models import build
from leakscope.play import attack
from leakscope.servers.fishing import Fishing
from manipulated import SHAPE, batch_of, exposed, small_mlp

LABELS = torch.tensor([[1, 0, 2, 3, 3, 1]])
CONVOLUTION = build("lenet_dlg", SHAPE, 4)


def alone(batch: Batch, places: torch.Tensor) -> Batch:
    """Return a batch of some samples."""
    return Batch(batch.inputs[:, places], batch.labels[:, places], batch.mask[:, places])


@pytest.mark.parametrize("model", [small_mlp(), CONVOLUTION], ids=["mlp", "lenet"])
def test_only_the_target_class_has_gradients_behind_the_head(model: Model) -> None:
    batch, manipulation = batch_of(1, 6, LABELS), Fishing()
    whole = exposed(manipulation, model, batch).observation.rounds[0].sent
    one = exposed(manipulation, model, alone(batch, torch.tensor([1]))).observation.rounds[0].sent
    assert model.head is not None
    for name in set(whole) - {model.head.weight, model.head.bias}:
        torch.testing.assert_close(6 * whole[name], one[name])


@pytest.mark.parametrize("target", [0, 1])
def test_the_update_handed_to_the_reader_is_that_of_the_target_class(target: int) -> None:
    """With one sample of the class all tensors are its own gradient, the head's included; with two they are its mean."""
    batch, handed = batch_of(1, 6, LABELS), []

    class Spy:
        name = "spy"

        def run(self, model, observation, knowledge, seeds, execution=None):  # type: ignore[no-untyped-def]
            handed.append((observation, knowledge))
            return idlg(iterations=1).run(model, observation, knowledge, seeds)

    manipulation = Fishing(target=target, reader=Spy())
    result = attack(exposed(manipulation, CONVOLUTION, batch), manipulation).reconstruction
    places = (LABELS[0] == target).nonzero().flatten()
    expected = exposed(manipulation, CONVOLUTION, alone(batch, places)).observation.rounds[0].sent
    assert bool((result.inputs[:, 1:] == 0.5).all())
    seen, knowledge = handed[0]
    assert knowledge.samples == 1
    for name, value in seen.rounds[0].sent.items():
        torch.testing.assert_close(value, expected[name])
    torch.testing.assert_close(result.learned["fished"], torch.tensor([float(len(places))]))


def test_by_feature_the_sample_with_the_least_feature_is_left() -> None:
    """Among samples of one class only those below the threshold have gradients, and the update counts them."""
    model, batch = small_mlp(), batch_of(1, 6, torch.full((1, 6), 2))
    assert model.head is not None
    manipulation = Fishing(target=2, feature=_moving_feature(model, batch), batch=2, reader=idlg(iterations=1))
    seen = exposed(manipulation, model, batch)
    head = seen.observation.rounds[0].before
    threshold = -head[str(model.head.bias)][0, 2] / head[model.head.weight][0, 2].max()
    features = _features(model, batch)[:, manipulation.feature]
    places = (features < threshold).nonzero().flatten()
    assert 0 < len(places) < 6
    fished = attack(seen, manipulation).reconstruction.learned["fished"]
    assert float(fished[0]) == pytest.approx(len(places), abs=0.2)
    few = exposed(manipulation, model, alone(batch, places)).observation.rounds[0].sent
    sent = seen.observation.rounds[0].sent["dense1.weight"]
    rest = sent * 6 / len(places) - few["dense1.weight"]  # of samples near the threshold
    assert float(rest.norm()) < 0.15 * float(few["dense1.weight"].norm())


def _features(model: Model, batch: Batch) -> torch.Tensor:
    weight, bias = model.parameters["dense1.weight"], model.parameters["dense1.bias"]
    return (batch.inputs[0].flatten(1) @ weight.mT + bias).relu()


def _moving_feature(model: Model, batch: Batch) -> int:
    return int(_features(model, batch).std(0).argmax())


@pytest.mark.slow
def test_ig_reads_the_fished_sample_and_not_the_batch() -> None:
    batch = batch_of(1, 6, LABELS)
    reader = replace(ig(iterations=200, tv=1e-4), name="ig")
    manipulation = Fishing(reader=reader)
    fished = attack(exposed(manipulation, CONVOLUTION, batch), manipulation)
    distance = (fished.reconstruction.inputs[0, 0] - batch.inputs[0, 1]).square().mean()
    others = (fished.reconstruction.inputs[0, 0] - batch.inputs[0]).square().flatten(1).mean(1)
    assert int(others.argmin()) == 1
    assert float(distance) < 0.02


def test_a_step_of_shared_weights_counts_like_a_gradient() -> None:
    manipulation, batch = Fishing(target=1, reader=idlg(iterations=1)), batch_of(1, 6, LABELS)
    seen = exposed(manipulation, CONVOLUTION, batch, Client(local=LocalTraining(rate=0.1)))
    fished = attack(seen, manipulation).reconstruction.learned["fished"]
    torch.testing.assert_close(fished, torch.tensor([2.0]), atol=0.05, rtol=0)


def test_what_does_not_fit_is_refused() -> None:
    assert isinstance(Fishing().reader, Matching)
    unfit = (
        (Fishing(target=4), small_mlp()),
        (Fishing(), build("mlp_sme", SHAPE, 4)),
        (Fishing(feature=99), small_mlp()),
    )
    for manipulation, model in unfit:
        with pytest.raises(InputError):
            exposed(manipulation, model, batch_of(1, 4))
    with pytest.raises(InputError):
        Fishing(batch=1)
