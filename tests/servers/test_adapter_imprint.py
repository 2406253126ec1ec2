"""Adapters behind frozen weights of a dishonest server: tokens come back in their places, from honest weights none does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import DEFAULT
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import take
from leakscope.core.types import Batch, LocalTraining, direction
from leakscope.models import adapt, bert, from_module, gpt
from leakscope.models.token_model import TokensFromNumbers
from leakscope.play import Exposure, expose, reconstruct, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.adapter_imprint import AdapterImprint
from leakscope.servers.small_transformer import UNREAD

LENGTH, VOCABULARY = 8, 120
TRAP = AdapterImprint()
PUBLIC = torch.zeros(1, LENGTH)  # the server needs no public sentence


def model_of(network: nn.Module, *, trained: tuple[str, ...] = ()) -> Model:
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or any(layer in name for layer in trained))
    example = torch.zeros(2, LENGTH)
    return from_module(TokensFromNumbers(network), input_shape=(LENGTH,), example=example, any_output=True)


def small(*, rank: int = 8, layers: str = "query value", scale: float = 2.0, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    given = {"vocabulary": VOCABULARY, "positions": LENGTH + 4, "width": 96, "depth": 3, "classes": 3} | settings
    return adapt(gpt(**given), rank=rank, layers=layers.split(), scale=scale)


def private(sentences: int, seed: int = 7) -> Batch:
    """Return sentences of drawn tokens whose first ones differ."""
    x = torch.randint(VOCABULARY, (1, sentences, LENGTH), generator=torch.Generator().manual_seed(seed))
    x[0, :, 0] = torch.arange(sentences) + 3
    return Batch(x.float(), torch.arange(sentences)[None] % 3, torch.ones(1, sentences, dtype=torch.bool))


def manipulated(model: Model, batch: Batch, client: Client = Client()) -> Exposure:  # noqa: B008  frozen
    return expose_manipulated(TRAP, model, client, shared_weights(model, batch.trials), batch, PUBLIC, [0])


def placed(truth: Tensor, exposure: Exposure) -> tuple[float, int]:
    """Return the share of tokens in their places, and how many of those read are wrong; first tokens name the sentences."""
    guess = reconstruct(exposure, TRAP, DEFAULT).inputs[0]
    rows = {int(row[0]): row for row in guess}
    found = torch.stack([rows.get(int(row[0]), torch.full_like(row, UNREAD)) for row in truth])
    wrong = (guess != UNREAD).sum() - ((found == truth) & (found != UNREAD)).sum()
    return float((found == truth).double().mean()), int(wrong)


@pytest.mark.parametrize("trained", [(), ("head", "norm2")])
@pytest.mark.parametrize(
    ("layers", "sentences", "least"),
    [("query value", 1, 1.0), ("value", 4, 0.65), ("query value dense1", 1, 1.0), ("dense1", 4, 0.85)],
)
def test_adapters_give_tokens_in_their_places(
    layers: str, sentences: int, least: float, trained: tuple[str, ...]
) -> None:
    model, batch = model_of(small(layers=layers), trained=trained), private(sentences)
    exposure = manipulated(model, batch)
    assert not any("embedding" in name or ".dense." in name for name in exposure.observation.rounds[0].sent)
    right, wrong = placed(batch.inputs[0], exposure)
    assert right >= least
    assert wrong <= 1
    honest = expose(model, Client(), shared_weights(model, 1), batch, [0])
    assert placed(batch.inputs[0], honest)[0] < 0.05


@pytest.mark.parametrize("layers", ["value", "dense1"])
def test_the_rank_hardly_matters_from_4_on(layers: str) -> None:
    batch = private(2)
    shares = [
        placed(batch.inputs[0], manipulated(model_of(small(rank=rank, layers=layers)), batch))[0] for rank in (4, 32)
    ]
    assert min(shares) > 0.75
    assert abs(shares[0] - shares[1]) < 0.2


def test_more_blocks_read_more_of_values() -> None:
    batch = private(8)
    shares = [placed(batch.inputs[0], manipulated(model_of(small(depth=depth)), batch))[0] for depth in (3, 6)]
    assert shares[1] > shares[0] + 0.1


@pytest.mark.parametrize("layers", ["value", "dense1"])
def test_the_first_update_is_that_of_the_outer_factor_alone(layers: str) -> None:
    exposure = manipulated(model_of(small(layers=layers)), private(2))
    seen = exposure.observation.rounds[0]
    update = take(direction(seen, exposure.observation.shares), 0)
    assert not any(bool(value.any()) for name, value in update.items() if "inner" in name)
    assert not any(bool(value.any()) for name, value in take(seen.before, 0).items() if "outer" in name)


@pytest.mark.parametrize("layers", ["value", "dense1"])
def test_tokens_of_an_encoder_come_back(layers: str) -> None:
    encoder = adapt(bert(vocabulary=VOCABULARY, positions=LENGTH, width=96, classes=3, pre_norm=True), layers=[layers])
    batch = private(1)
    assert placed(batch.inputs[0], manipulated(model_of(encoder), batch))[0] == 1.0


@pytest.mark.parametrize(("layers", "least"), [("value", 0.6), ("dense1", 0.85)])
def test_local_training_leaves_tokens_to_read(layers: str, least: float) -> None:
    batch, client = private(2), Client(local=LocalTraining(epochs=3, rate=0.01))
    assert placed(batch.inputs[0], manipulated(model_of(small(layers=layers)), batch, client))[0] > least


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (small(layers="query"), "low-rank adapters on dense1 or value"),
        (small(depth=2), "three blocks for adapters on values"),
        (small(rank=3), "rank 4 or more"),
        (small(width=24, layers="dense1"), "width of at least 30"),
        (small(heads=32), "heads of at least 4"),
        (small(kind="rotary"), "learned positions"),
        (gpt(vocabulary=VOCABULARY, positions=LENGTH, width=64, classes=3), "low-rank adapters"),
        (nn.Sequential(nn.Linear(LENGTH, 3)), "is none"),
    ],
)
def test_networks_that_do_not_fit_are_refused_in_one_line(network: nn.Module, why: str) -> None:
    dense = isinstance(network, nn.Sequential)
    model = from_module(network, input_shape=(LENGTH,)) if dense else model_of(network)
    with pytest.raises(InputError, match=why) as raised:
        manipulated(model, private(1))
    assert len(str(raised.value).splitlines()) == 1


def test_bins_are_quantiles_of_drawn_sentences_of_all_lengths() -> None:
    """One place has no neighbour to lie apart from."""
    network = small(layers="dense1")
    model = from_module(TokensFromNumbers(network), input_shape=(1,), example=torch.zeros(2, 1), any_output=True)
    batch = Batch(torch.tensor([[[5.0], [9.0]]]), torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2).bool())
    exposure = expose_manipulated(TRAP, model, Client(), shared_weights(model, 1), batch, torch.zeros(1, 1), [0])
    read = reconstruct(exposure, TRAP, DEFAULT).inputs
    assert not math.isnan(float(read.sum()))
    assert {5.0, 9.0} == set(read.flatten().tolist())
