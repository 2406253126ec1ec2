"""Trap weights and soliton biases isolate samples on units of a first dense layer, and peeling reads them."""

from __future__ import annotations

import pytest
import torch

from leakscope.attacks import analytic
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.models import build
from leakscope.play import attack, expose, shared_weights
from leakscope.servers.soliton import SolitonBiases, robust_soliton
from leakscope.servers.trap_weights import TrapWeights
from manipulated import SHAPE, batch_of, exact, exposed, images, small_mlp

MODEL = small_mlp(200)


def first_layer(manipulation: TrapWeights | SolitonBiases, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and biases of the manipulated first layer."""
    sent: Tree = manipulation.weights(MODEL, MODEL.parameters, public, random.key(5))
    return sent["dense1.weight"], sent["dense1.bias"]


def test_half_of_a_trap_row_is_the_other_half_mirrored_and_shrunk() -> None:
    rows, bias = first_layer(TrapWeights(factor=0.9), images(2, 0))
    positive = torch.stack([row[row > 0].sort().values for row in rows])
    negative = torch.stack([row[row < 0].neg().sort().values for row in rows])
    torch.testing.assert_close(positive, 0.9 * negative)
    assert not bool(bias.any())
    assert not torch.equal((rows[0] > 0), (rows[1] > 0))


def test_soliton_biases_give_units_the_drawn_shares_of_the_public_data() -> None:
    public = images(320, 4)
    manipulation = SolitonBiases(batch=32)
    rows, bias = first_layer(manipulation, public)
    active = (public.flatten(1) @ rows.mT + bias > 0).sum(0)
    assert bool((active % 10 == 0).all())  # a share d / 32 of 320
    mean = float((robust_soliton(32) * torch.arange(1, 33)).sum())
    assert float(active.double().mean()) / 10 == pytest.approx(mean, rel=0.35)
    assert torch.equal(rows, MODEL.parameters["dense1.weight"])


def test_uniform_inputs_exceed_gaussian_biases_as_often() -> None:
    public = torch.rand(4000, *SHAPE, generator=torch.Generator().manual_seed(0))
    by_data, by_law = (first_layer(SolitonBiases(batch=32, from_data=how), public)[1] for how in (True, False))
    torch.testing.assert_close(by_law, by_data, atol=0.05, rtol=0)


@pytest.mark.parametrize("batch", [2, 32, 256])
def test_the_robust_soliton_is_a_distribution_with_mean_near_a_logarithm(batch: int) -> None:
    likely = robust_soliton(batch)
    assert likely.shape == (batch,)
    assert bool((likely > 0).all())
    assert float(likely.sum()) == pytest.approx(1)
    assert float(likely.argmax()) == (1 if batch > 2 else 0)


@pytest.mark.parametrize("manipulation", [TrapWeights(factor=0.85), SolitonBiases(batch=24)], ids=lambda m: str(m.name))
def test_more_samples_are_proved_than_with_honest_weights(manipulation: TrapWeights | SolitonBiases) -> None:
    batch = batch_of(1, 24)
    seen = exposed(manipulation, MODEL, batch)
    result = attack(seen, manipulation).reconstruction
    assert result.proved is not None
    honest = expose(MODEL, seen.client, shared_weights(MODEL, 1), batch, seen.seeds)
    passive = attack(honest, manipulation.reader).reconstruction
    assert exact(batch, result).sum() >= int(result.proved.sum()) > int(passive.proved.sum())  # type: ignore[union-attr]
    assert float(exact(batch, result).double().mean()) > 0.5


def test_the_reader_can_be_plain_division() -> None:
    manipulation, batch = TrapWeights(factor=0.85, reader=analytic()), batch_of(1, 12)
    assert attack(exposed(manipulation, MODEL, batch), manipulation).reconstruction.proved is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError):
        exposed(TrapWeights(), build("lenet_dlg", SHAPE, 4), batch_of(1, 4))
    with pytest.raises(InputError):
        TrapWeights(factor=1.5)
    with pytest.raises(InputError):
        SolitonBiases(batch=1)
