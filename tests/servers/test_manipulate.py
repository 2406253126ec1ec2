"""`manipulate` scores a dishonest server beside null baselines: LOKI keeps the clients of a sum apart; censoring hides rare units."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import LocalTraining, direction, make_batch
from leakscope.models import build, from_module
from leakscope.play.dishonest import manipulate
from leakscope.play.exposure import expose, shared_weights
from leakscope.servers.catalogue import MANIPULATIONS
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


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_loki_for_another_number_of_clients_is_refused(clients: int) -> None:
    with pytest.raises(InputError, match=rf"^loki is made for clients=3, and the update is of {clients}"):
        manipulate(MODEL, batch_of(1, 12), Loki(3), PUBLIC, LABELS, client=Client(aggregate=clients))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (build("linear", SHAPE, 4), "'dense1.weight'.* must be .*, got nothing"),
        (small_mlp(50), "'dense1.weight'.* must be .*, got .*50"),
        (build("mlp", SHAPE, 4, {"hidden": (48, 48)}), "of another network: 'mlp' has no 'dense2"),
    ],
    ids=["other", "wider", "deeper"],
)
def test_weights_of_another_network_are_refused(other: Model, why: str) -> None:
    with pytest.raises(InputError, match=why):
        manipulate(small_mlp(), batch_of(1, 4), Imprint(), PUBLIC, LABELS, weights=shared_weights(other, 1))


@pytest.mark.parametrize(
    ("public", "why"),
    [
        (PUBLIC[:0], "needs public inputs"),
        (PUBLIC[:1], "the same for all 1$"),
        (PUBLIC[:1].expand(8, *SHAPE), "the same for all 8$"),
        (PUBLIC / 0, "hold NaN"),
    ],
    ids=["none", "one", "alike", "infinite"],
)
def test_public_inputs_without_quantiles_are_refused(public: torch.Tensor, why: str) -> None:
    with pytest.raises(InputError, match=why):
        dishonest_weights(Imprint(), small_mlp(), shared_weights(small_mlp(), 1), public, [0])


def test_a_sample_of_another_shape_is_refused() -> None:
    batch = batch_of(1, 4)
    flat = replace(batch, inputs=batch.inputs[:, :, 0])
    with pytest.raises(InputError, match=r"takes inputs \(1, 6, 6\), the batch has \(6, 6\)$"):
        manipulate(small_mlp(), flat, Imprint(), PUBLIC, LABELS)


NORMED = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))


@pytest.mark.filterwarnings("ignore:labels are drawn")
@pytest.mark.parametrize("name", sorted(MANIPULATIONS))
@pytest.mark.parametrize(
    "model",
    [
        small_mlp(),
        build("linear", SHAPE, 4),
        build("mlp", SHAPE, 4, {"activation": "sigmoid"}),
        build("mlp", (12,), 4, {"hidden": (24,)}),
        from_module(NORMED, input_shape=SHAPE),
        from_module(nn.Sequential(nn.Flatten(), nn.Linear(36, 4, bias=False)), input_shape=SHAPE),
    ],
    ids=["mlp", "linear", "sigmoid", "table", "norm", "bias"],
)
def test_a_manipulation_fits_a_network_or_says_why_in_one_line(name: str, model: Model) -> None:
    given = {"loki": {"clients": 1, "units": 8}, "inconsistent": {"clients": 2}, "fishing": {"iterations": 1}}
    settings: dict[str, int] = given.get(name, {})
    client = Client(aggregate=settings.get("clients", 1))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 4, *model.input_shape, generator=generator)
    batch = make_batch(x, torch.tensor([[0, 1, 2, 3]]), classes=4)
    public = torch.rand(40, *model.input_shape, generator=generator)
    lines = 1
    try:
        manipulation = MANIPULATIONS[name](**settings)
        read = manipulate(model, batch, manipulation, public, LABELS[:40], client=client).attack.reconstruction
    except InputError as error:
        lines = len(str(error).splitlines())
    else:
        lines += int(not bool(read.inputs.isfinite().all()))
    assert lines == 1


def test_censoring_stops_peeling_but_not_an_imprint() -> None:
    """An imprint's bins are differences of units that many samples activate."""
    model, batch = small_mlp(100), batch_of(1, 12)

    def recall(manipulation: Imprint | SolitonBiases, censor: int) -> float:
        result = manipulate(model, batch, manipulation, PUBLIC, LABELS, client=Client(censor=censor))
        return float(exact(batch, result.attack.reconstruction).double().mean())

    assert recall(SolitonBiases(batch=12), 4) < 0.3 < recall(SolitonBiases(batch=12), 1)
    assert recall(Imprint(), 4) > 0.5


@pytest.mark.parametrize("local", [None, LocalTraining(rate=0.5)])
def test_censored_units_send_nothing(local: LocalTraining | None) -> None:
    batch = batch_of(1, 6)
    seen = manipulate(small_mlp(), batch, SolitonBiases(batch=6), PUBLIC, LABELS, client=Client(local=local, censor=3))
    last = seen.exposure.observation.rounds[0]
    update = direction(last, seen.exposure.observation.shares)
    sums = batch.inputs.flatten(2) @ last.before["dense1.weight"].mT + last.before["dense1.bias"][:, None]
    rare = (sums > 0).sum(1) < 3
    assert bool(rare.any())
    assert not bool(update["dense1.weight"][rare].any() | update["dense1.bias"][rare].any())
    assert bool(update["dense1.bias"][~rare].any())
