"""Decepticons: tokens of a small transformer come back in their places, of honest weights none does, and other networks are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import DEFAULT
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pairing import pair
from leakscope.core.types import Batch
from leakscope.models import adapt, bert, from_module, gpt
from leakscope.models.token_model import TokensFromNumbers
from leakscope.play import expose, reconstruct, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.decepticons import Decepticons
from leakscope.servers.small_transformer import UNREAD

LENGTH, VOCABULARY = 8, 120


def sentences(number: int, seed: int) -> Tensor:
    chance = 1 / torch.arange(1, VOCABULARY + 1).double()
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(chance, number * LENGTH, replacement=True, generator=generator).reshape(number, LENGTH)


def model_of(network: nn.Module) -> Model:
    example = sentences(2, 0).float()
    return from_module(TokensFromNumbers(network), input_shape=(LENGTH,), example=example, any_output=True)


def small(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    given = {"vocabulary": VOCABULARY, "positions": LENGTH, "width": 64, "depth": 2, "classes": 3} | settings
    return gpt(**given)


def placed(truth: Tensor, guess: Tensor) -> tuple[float, float]:
    """Return the share of tokens in their places, and of read ones that are wrong."""
    equal = (truth[:, None] == guess).sum(2)
    guess = guess[pair(-equal.double())]
    read = guess != UNREAD
    return float((truth == guess).double().mean()), float((read & (truth != guess)).double().mean())


def private() -> Batch:
    x = torch.stack([torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))[: 4 * LENGTH]] * 1)
    return Batch(x.reshape(1, 4, LENGTH).float(), torch.tensor([[0, 1, 2, 0]]), torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize("depth", [2, 3])
def test_tokens_come_back_in_their_sentences_and_places(depth: int) -> None:
    model, batch, trap = model_of(small(depth=depth)), private(), Decepticons()
    given = (model, Client(), shared_weights(model, 1), batch, sentences(300, 1).float(), [0])
    guess = reconstruct(expose_manipulated(trap, *given), trap, DEFAULT)
    right, wrong = placed(batch.inputs[0], guess.inputs[0])
    assert right > 0.8
    assert wrong == 0  # first tokens differ, so no two sentences share a code


def test_the_same_reader_gets_no_token_of_honest_weights() -> None:
    model, batch = model_of(small()), private()
    seen = expose(model, Client(), shared_weights(model, 1), batch, [0])
    guess = reconstruct(seen, Decepticons(), DEFAULT)
    assert placed(batch.inputs[0], guess.inputs[0])[0] < 0.05


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (small(kind="rotary"), "learned positions"),
        (small(depth=1), "two blocks"),
        (small(width=16), "width of at least 32"),
        (adapt(small(), rank=4), "for adapters use adapter_imprint"),
        (bert(vocabulary=VOCABULARY, positions=LENGTH, width=64, classes=3), "norms before attention"),
        (nn.Sequential(nn.Linear(LENGTH, 3)), "is none"),
    ],
)
def test_networks_that_do_not_fit_are_refused_in_one_line(network: nn.Module, why: str) -> None:
    module = network if isinstance(network, nn.Sequential) else TokensFromNumbers(network)
    model = from_module(module, input_shape=(LENGTH,), example=sentences(2, 0).float(), any_output=True)
    given = (model, Client(), shared_weights(model, 1), private(), sentences(20, 1).float(), [0])
    with pytest.raises(InputError, match=why):
        expose_manipulated(Decepticons(), *given)
