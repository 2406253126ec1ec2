"""Dropout as a pure function of the key."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from leakscope.core.errors import InputError
from leakscope.core.random import fold, key
from leakscope.models import KeyedDropout, build, from_module
from leakscope.models.dropout import drawing_from, replace_dropout

ONES = torch.ones(100, 400)


def dropped(layer: nn.Module, x: Tensor, seed: Tensor) -> Tensor:
    with drawing_from(seed):
        result: Tensor = layer(x)
    return result


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keep_rate_and_scale(p: float) -> None:
    result = dropped(KeyedDropout(p), ONES, key(1))
    kept = result != 0
    assert abs(kept.double().mean().item() - (1 - p)) < 5 * (p * (1 - p) / ONES.numel()) ** 0.5
    assert torch.all(result[kept] == torch.tensor(1 / (1 - p)))


def test_same_key_same_mask_other_key_other_mask() -> None:
    layer = KeyedDropout(0.5)
    assert torch.equal(dropped(layer, ONES, key(1)), dropped(layer, ONES, key(1)))
    agree = (dropped(layer, ONES, key(1)) == dropped(layer, ONES, key(2))).double().mean()
    assert 0.48 < agree < 0.52


def test_each_dropout_of_a_call_draws_its_own_mask() -> None:
    layer, other = KeyedDropout(0.5), KeyedDropout(0.5)
    with drawing_from(key(1)):
        masks = [layer(ONES), layer(ONES), other(ONES)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert 0.48 < (masks[a] == masks[b]).double().mean() < 0.52


def test_eval_mode_and_zero_are_the_identity_and_need_no_key() -> None:
    assert KeyedDropout(0.5).eval()(ONES) is ONES
    assert KeyedDropout(0.0)(ONES) is ONES


def test_dropping_everything_gives_zero_with_zero_gradient() -> None:
    x = torch.ones(5, requires_grad=True)
    dropped(KeyedDropout(1.0), x, key(0)).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(5))


def test_whole_channels_fall_together() -> None:
    result = dropped(KeyedDropout(0.5, whole_channels=True), torch.ones(20, 30, 4, 4), key(0))
    assert torch.equal(result.amin((2, 3)), result.amax((2, 3)))
    assert 0.4 < (result[:, :, 0, 0] != 0).double().mean() < 0.6


def test_without_a_key_or_a_probability_it_says_so() -> None:
    with pytest.raises(InputError, match="has no key"):
        KeyedDropout(0.5)(ONES)
    with pytest.raises(InputError, match=r"p must.* got 1.5"):
        KeyedDropout(1.5)


def test_the_key_is_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), drawing_from(key(0)):
        raise ZeroDivisionError
    with pytest.raises(InputError, match="has no key"):
        KeyedDropout(0.5)(ONES)


def test_under_vmap_each_trial_draws_as_it_would_alone() -> None:
    model = build("lenet_dlg", (1, 8, 8), 3, {"dropout": 0.4, "width": 4})
    keys = fold(key(range(5)), "trial")
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    weights = {name: value.double() for name, value in model.parameters.items()}

    def slope(x: Tensor, seed: Tensor) -> Tensor:
        return grad(lambda guess: model.apply(weights, {}, guess, seed)[0].square().sum())(x)

    many = vmap(slope, in_dims=(None, 0), randomness="error")(x, keys)
    torch.testing.assert_close(many, torch.stack([slope(x, one) for one in keys]), rtol=1e-12, atol=1e-15)
    assert not torch.allclose(many[0], many[1])


def test_users_dropout_is_replaced_in_train_mode_only_and_shared_layers_stay_shared() -> None:
    shared = nn.Dropout(0.3)
    module = nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.Dropout2d(0.2), shared), nn.Dropout(0.1).eval())
    replace_dropout(module)
    assert module[1] is module[2][1]
    assert isinstance(module[1], KeyedDropout)
    assert module[1].p == 0.3
    assert isinstance(module[2][0], KeyedDropout)
    assert module[2][0].whole_channels
    assert type(module[3]) is nn.Dropout


def test_users_dropout_draws_from_the_key_and_not_from_the_global_generator() -> None:
    module = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    before = torch.get_rng_state()
    model = from_module(module, input_shape=(4,))
    x = torch.ones(2, 4)
    outputs = [model.apply(model.parameters, {}, x, key(seed))[0] for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    quiet = from_module(module.eval(), input_shape=(4,))
    assert torch.equal(quiet.apply(quiet.parameters, {}, x, key(1))[0], module(x))


def test_a_traced_call_still_draws_from_the_key_it_is_given() -> None:
    module = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    model = from_module(module, input_shape=(4,))
    x = torch.ones(2, 2, 4)

    def logits(x: Tensor, seeds: Tensor) -> Tensor:
        return vmap(lambda x, seed: model.apply(model.parameters, {}, x, seed)[0])(x, seeds)

    traced = make_fx(logits)(x, key([0, 0]))
    assert torch.equal(traced(x, key([7, 8])), logits(x, key([7, 8])))
    assert not torch.equal(traced(x, key([7, 8])), traced(x, key([7, 9])))
