"""`manipulate` scores a dishonest server beside null baselines: LOKI keeps the clients of a sum apart; censoring hides rare units."""

from __future__ import annotations

import pytest
import torch

from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining, direction
from leakscope.models import build
from leakscope.play.dishonest import manipulate
from leakscope.play.exposure import expose
from leakscope.servers.imprint import FIRST, Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import dishonest_weights
from leakscope.servers.soliton import SolitonBiases
from manipulated import SHAPE, batch_of, exact, images, small_mlp

PUBLIC, LABELS = images(400, 3), torch.arange(400) % 4
CLIENTS = 3
MODEL = build("lenet_dlg", SHAPE, 4)
SUM = Client(aggregate=CLIENTS)


def test_the_sum_holds_each_clients_gradient_in_its_own_columns() -> None:
    batch = batch_of(1, 4 * CLIENTS)
    seen = manipulate(MODEL, batch, Loki(CLIENTS, units=16), PUBLIC, LABELS, client=SUM).exposure.observation
    blocks = seen.rounds[0].sent[FIRST].unflatten(2, (CLIENTS, -1))
    honest = {name: value[None] for name, value in MODEL.parameters.items()}
    network, sent = dishonest_weights(Imprint(inserted=16), MODEL, honest, PUBLIC, [0])
    for number in range(CLIENTS):
        part = slice(4 * number, 4 * number + 4)
        own = type(batch)(batch.inputs[:, part], batch.labels[:, part], batch.mask[:, part])
        alone = expose(network, Client(), sent, own, [0]).observation.rounds[0].sent[FIRST]
        torch.testing.assert_close(blocks[:, :, number] * CLIENTS, alone)


def test_most_samples_of_every_client_come_back_while_a_plain_imprint_mixes_them() -> None:
    batch = batch_of(2, 12 * CLIENTS)
    loki = manipulate(MODEL, batch, Loki(CLIENTS, units=48), PUBLIC, LABELS, client=SUM)
    plain = manipulate(MODEL, batch, Imprint(inserted=48), PUBLIC, LABELS, client=SUM)
    near = [exact(batch, result.attack.reconstruction, 0.02) for result in (loki, plain)]
    each = near[0].unflatten(1, (CLIENTS, -1)).double().mean((0, 2))
    assert bool((each > 0.5).all())
    assert near[0].sum() > near[1].sum()
    assert set(loki.baselines) == {"class_mean", "nearest_public"}
    assert not any(bool(exact(batch, null.reconstruction, 0.02).any()) for null in loki.baselines.values())


def test_shared_weights_are_read_like_gradients() -> None:
    batch = batch_of(1, 12 * CLIENTS)
    client = Client(aggregate=CLIENTS, local=LocalTraining(rate=1.0))
    result = manipulate(MODEL, batch, Loki(CLIENTS, units=48), PUBLIC, LABELS, client=client)
    assert float(exact(batch, result.attack.reconstruction, 0.05).double().mean()) > 0.4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError):
        manipulate(build("mlp", (12,), 4), batch_of(1, 4), Loki(2), PUBLIC, LABELS)
    with pytest.raises(InputError):
        manipulate(small_mlp(), batch_of(1, 4), Imprint(), PUBLIC[:, :, :3], LABELS)
    with pytest.raises(InputError):
        manipulate(MODEL, batch_of(1, 6), Loki(2), PUBLIC, LABELS, client=Client(aggregate=2, rounds=2))
    with pytest.raises(InputError):
        Loki(2, client=2)


def test_censoring_stops_peeling_but_not_an_imprint() -> None:
    """An imprint's bins are differences of units that many samples activate."""
    model, batch = small_mlp(100), batch_of(1, 12)

    def recall(manipulation: Imprint | SolitonBiases, fewest: int) -> float:
        result = manipulate(model, batch, manipulation, PUBLIC, LABELS, fewest=fewest)
        return float(exact(batch, result.attack.reconstruction).double().mean())

    assert recall(SolitonBiases(batch=12), 4) < 0.3 < recall(SolitonBiases(batch=12), 1)
    assert recall(Imprint(), 4) > 0.5


@pytest.mark.parametrize("local", [None, LocalTraining(rate=0.5)])
def test_censored_units_send_nothing(local: LocalTraining | None) -> None:
    batch = batch_of(1, 6)
    seen = manipulate(small_mlp(), batch, SolitonBiases(batch=6), PUBLIC, LABELS, client=Client(local=local), fewest=3)
    last = seen.exposure.observation.rounds[0]
    update = direction(last, seen.exposure.observation.shares)
    sums = batch.inputs.flatten(2) @ last.before["dense1.weight"].mT + last.before["dense1.bias"][:, None]
    rare = (sums > 0).sum(1) < 3
    assert bool(rare.any())
    assert not bool(update["dense1.weight"][rare].any() | update["dense1.bias"][rare].any())
    assert bool(update["dense1.bias"][~rare].any())
