"""Transformers over tokens: shapes, causality, tied heads, per-trial gradients under vmap, low-rank adapters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.models import TextTransformer, adapt, bert, from_module, gpt
from leakscope.models.transformer_text import rotate

SMALL = {"vocabulary": 30, "positions": 8, "width": 16, "heads": 2}
TOKENS = torch.randint(30, (3, 6), generator=torch.Generator().manual_seed(0))


def small(make: object = gpt, **settings: object) -> TextTransformer:
    torch.manual_seed(0)
    return make(**SMALL, **settings)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("make", [gpt, bert])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_outputs_have_a_row_a_sequence_or_a_token(make: object, pre_norm: bool) -> None:
    assert small(make, classes=4, pre_norm=pre_norm)(TOKENS).shape == (3, 4)
    assert small(make, pre_norm=pre_norm)(TOKENS).shape == (3, 6, 30)


@pytest.mark.parametrize(("make", "causal"), [(gpt, True), (bert, False)])
def test_only_a_gpt_hides_later_tokens(make: object, causal: bool) -> None:
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 30
    model = small(make)
    same = torch.allclose(model(TOKENS)[:, :-1], model(changed)[:, :-1], atol=1e-7)
    assert same is causal


def test_a_tied_head_is_the_embedding() -> None:
    model = small(tied=True)
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())
    with pytest.raises(InputError):
        small(tied=True, classes=2)


@pytest.mark.parametrize("settings", [{}, {"tied": True}])
def test_a_language_model_differentiates_under_vmap_as_alone(settings: dict[str, object]) -> None:
    module = small(**settings)
    model = from_module(module, input_shape=(6,), example=TOKENS, any_output=True)
    several = {name: torch.stack([value, 1.1 * value]) for name, value in model.parameters.items()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        logits = model.apply(parameters, model.buffers, TOKENS, random.key(0))[0]
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())

    batched = torch.func.vmap(torch.func.grad(loss))(several)
    for t in range(2):
        alone = torch.func.grad(loss)({name: value[t] for name, value in several.items()})
        assert_close({name: value[t] for name, value in batched.items()}, alone, rtol=1e-4, atol=1e-6)


def test_dropout_draws_from_the_key() -> None:
    model = from_module(small(dropout=0.5).train(), input_shape=(6,), example=TOKENS, any_output=True)
    outputs = [model.apply(model.parameters, model.buffers, TOKENS, random.key(k))[0] for k in (0, 0, 1)]
    assert model.draws
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_adapters_start_without_effect_and_are_all_that_is_sent() -> None:
    module = small(classes=2)
    before = module(TOKENS)
    adapted = adapt(module, rank=3)
    assert_close(adapted(TOKENS), before)
    sent = from_module(adapted, input_shape=(6,), example=TOKENS).parameters
    assert {name.split(".", 2)[2] for name in sent} == {
        f"{layer}.{factor}.weight" for layer in ("query", "value") for factor in ("inner", "outer")
    }
    with pytest.raises(InputError):
        adapt(small(), layers=("nothing",))
    with pytest.raises(InputError):
        adapt(small(), rank=16)


@pytest.mark.parametrize("make", [gpt, bert])
@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary"])
def test_padding_changes_nothing_for_the_sentence_before_it(make: object, kind: str) -> None:
    model = small(make, classes=3, kind=kind, padding=0)
    short = TOKENS[:, :4].clamp_min(1)
    padded = torch.cat([short, torch.zeros(3, 2, dtype=torch.int64)], dim=1)
    assert_close(model(padded), model(short), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary"])
def test_every_kind_of_position_tells_orders_apart(kind: str) -> None:
    model = small(bert, classes=3, kind=kind)
    assert not torch.equal(model(TOKENS), model(TOKENS.flip(1)))


def test_rotary_attention_depends_on_distances_only() -> None:
    query, key = torch.randn(2, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = [rotate(x.expand(1, 6, 16), 2)[0].unflatten(-1, (2, 8)) for x in (query, key)]
    scores = torch.einsum("phw,qhw->hpq", *turned)
    assert_close(scores[:, 1, 3], scores[:, 2, 4])
    assert not torch.allclose(scores[:, 1, 3], scores[:, 1, 4])


def test_wrong_positions_and_padding_are_refused() -> None:
    for wrong in ({"kind": "rotatory"}, {"padding": 30}, {"kind": "rotary", "width": 6, "heads": 2}):
        with pytest.raises(InputError):
            gpt(**{**SMALL, **wrong})
    with pytest.raises(IndexError):
        small(kind="rotary")(TOKENS.repeat(1, 2))
