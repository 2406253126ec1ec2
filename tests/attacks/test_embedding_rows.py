"""The rows of an embedding that moved are the tokens of the batch, under every optimiser that leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakscope.attacks.exact.embedding_rows import bag_of_gradient, bag_of_weights
from leakscope.core.errors import InputError
from leakscope.models import TextTransformer, bert, gpt

VOCABULARY, LENGTH = 200, 7
Loss = Callable[[TextTransformer, Tensor], Tensor]


def tokens(seed: int, batch: int = 4) -> Tensor:
    return torch.randint(VOCABULARY, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))


def classify(model: TextTransformer, x: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 2)


def predict(model: TextTransformer, x: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def network(make: Callable[..., TextTransformer] = gpt, **given: object) -> TextTransformer:
    torch.manual_seed(0)
    return make(vocabulary=VOCABULARY, positions=LENGTH, width=32, heads=2, depth=2, **given)


@pytest.mark.parametrize("make", [gpt, bert])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_rows_of_a_gradient_are_the_tokens_with_dropout_or_without(
    make: Callable[..., TextTransformer], dropout: float
) -> None:
    model, x = network(make, classes=2, dropout=dropout), tokens(0)
    classify(model, x).backward()
    assert model.embedding.weight.grad is not None
    bag = bag_of_gradient(model.embedding.weight.grad)
    assert bag.exact
    assert bag.tokens.tolist() == x.unique().tolist()


def test_a_language_model_hides_the_last_token_of_a_sequence_only() -> None:
    model, x = network(), tokens(1)
    predict(model, x).backward()
    assert model.embedding.weight.grad is not None
    assert bag_of_gradient(model.embedding.weight.grad).tokens.tolist() == x[:, :-1].unique().tolist()


OPTIMISERS: dict[str, Callable[[TextTransformer], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "decay": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1),
}


@pytest.mark.parametrize("name", sorted(OPTIMISERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_local_steps_move_the_rows_of_all_their_tokens(name: str, dtype: torch.dtype) -> None:
    model = network(classes=2).to(dtype)
    before = model.embedding.weight.detach().clone()
    optimiser, parts = OPTIMISERS[name](model), [tokens(seed) for seed in range(5)]
    for x in parts:
        optimiser.zero_grad()
        classify(model, x).backward()
        optimiser.step()
    bag = bag_of_weights(before, model.embedding.weight.detach())
    assert bag.exact
    assert bag.tokens.tolist() == torch.cat(parts).unique().tolist()
    assert (bag.factor < 1) == (name in ("decay", "adamw"))


def test_most_rows_may_be_tokens() -> None:
    model = network(classes=2)
    before = model.embedding.weight.detach().clone()
    optimiser, x = OPTIMISERS["decay"](model), tokens(0, batch=60)
    classify(model, x).backward()
    optimiser.step()
    assert len(x.unique()) > VOCABULARY / 2
    assert bag_of_weights(before, model.embedding.weight.detach()).tokens.tolist() == x.unique().tolist()


def test_a_decay_inside_adams_gradient_is_never_called_exact() -> None:
    model = network(classes=2)
    before = model.embedding.weight.detach().clone()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-2)
    classify(model, tokens(0)).backward()
    optimiser.step()
    assert not bag_of_weights(before, model.embedding.weight.detach()).exact


def test_a_tied_head_leaves_the_tokens_as_outliers() -> None:
    model, x = network(tied=True), tokens(2)
    predict(model, x).backward()
    gradient = model.embedding.weight.grad
    assert gradient is not None
    assert bool((gradient != 0).any(1).all())
    bag, truth = bag_of_gradient(gradient, tied=True), set(x.flatten().tolist())
    assert not bag.exact
    assert set(bag.tokens.tolist()) <= truth
    assert len(bag.tokens) >= 0.9 * len(truth)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), rate=st.floats(1e-4, 1.0), decay=st.floats(0.0, 0.5))
def test_the_set_does_not_depend_on_rate_and_decay(seed: int, rate: float, decay: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(50, 8, generator=generator)
    truth = torch.randperm(50, generator=generator)[:9].sort().values
    gradient = torch.zeros(50, 8).index_copy(0, truth, torch.randn(9, 8, generator=generator))
    after = before * (1 - rate * decay) - rate * gradient
    assert bag_of_weights(before, after).tokens.tolist() == truth.tolist()


def test_what_is_no_embedding_is_refused() -> None:
    with pytest.raises(InputError):
        bag_of_gradient(torch.zeros(3))
    with pytest.raises(InputError):
        bag_of_gradient(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(InputError):
        bag_of_weights(torch.zeros(3, 2), torch.zeros(4, 2))
    with pytest.raises(InputError):
        bag_of_gradient(torch.full((3, 2), float("nan")))
