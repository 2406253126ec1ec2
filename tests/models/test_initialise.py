"""First weights: the right distribution, from each trial's key alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.random import key
from leakscope.models import INITS, Given, Init, Torch, Uniform, build, draw_parameters, from_module, torch_bounds
from leakscope.models.initialise import Bound, Transformer

LENET = build("lenet_dlg", (1, 28, 28), 10)
KEYS = key(range(20))


def assert_uniform(sample: torch.Tensor, bound: float) -> None:
    """Bounds, mean, variance and fourth moment of U(-b, b), each within 6 standard errors."""
    u, n = sample.double().flatten() / bound, sample.numel()
    assert u.abs().max() <= 1
    for power, mean in ((1, 0.0), (2, 1 / 3), (4, 1 / 5)):
        variance = 1 / (2 * power + 1) - mean**2
        assert abs(u.pow(power).mean().item() - mean) < 6 * math.sqrt(variance / n)


@pytest.mark.parametrize("a", [0.5, 0.05])
def test_uniform_draws_every_weight_and_bias_from_the_same_range(a: float) -> None:
    drawn = draw_parameters(LENET, Uniform(a), KEYS)
    for name, value in drawn.items():
        assert value.shape == (20, *LENET.parameters[name].shape)
        assert_uniform(value, a)
    assert drawn["head.weight"].abs().max() > 0.99 * a


def test_pytorch_scheme_has_the_range_of_each_layer() -> None:
    drawn = draw_parameters(LENET, Torch(), KEYS)
    for name, fan in {"conv1": 25, "conv2": 300, "conv3": 300, "head": 588}.items():
        assert_uniform(drawn[f"{name}.weight"], fan**-0.5)
        assert_uniform(drawn[f"{name}.bias"], fan**-0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(7, 300),
        lambda: nn.Conv2d(4, 60, 3, groups=2),
        lambda: nn.Conv1d(3, 90, 5),
        lambda: nn.ConvTranspose2d(60, 4, 3),
        lambda: nn.GRU(3, 40),
        lambda: nn.LSTMCell(3, 40),
        lambda: nn.MultiheadAttention(32, 4),
        lambda: nn.MultiheadAttention(32, 4, kdim=16, vdim=8),
        lambda: nn.LayerNorm(8),
        lambda: nn.GroupNorm(2, 8),
        lambda: nn.BatchNorm2d(8),
        lambda: nn.RMSNorm(8),
        lambda: nn.PReLU(3),
    ],
)
def test_bounds_are_those_of_the_layers_own_constructor(make: object) -> None:
    assert callable(make)
    layers = [make() for _ in range(8)]
    for name, bound in torch_bounds(layers[0]).items():
        sample = torch.cat([dict(layer.named_parameters())[name].detach().flatten() for layer in layers])
        if bound.low == bound.high:
            assert torch.all(sample == bound.low), name
        else:
            assert bound.low == -bound.high
            assert_uniform(sample, bound.high * (1 + 1e-6))
            assert sample.abs().max() > 0.85 * bound.high


def test_norm_layers_start_at_one_and_zero() -> None:
    drawn = draw_parameters(build("resnet20", (1, 8, 8), settings={"width": 2}), Torch(), KEYS[:2])
    assert torch.all(drawn["norm.weight"] == 1)
    assert torch.all(drawn["norm.bias"] == 0)


def test_given_repeats_the_models_values_in_separate_copies() -> None:
    drawn = draw_parameters(LENET, Given(), KEYS[:3])
    for name, value in drawn.items():
        assert torch.equal(value, torch.stack([LENET.parameters[name]] * 3))
    drawn["head.bias"][0] += 1
    assert torch.equal(drawn["head.bias"][1], LENET.parameters["head.bias"])


@pytest.mark.parametrize("scheme", [Uniform(), Torch()])
def test_a_trial_depends_on_its_key_alone(scheme: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    all_at_once = draw_parameters(LENET, scheme, KEYS)
    monkeypatch.setattr("leakscope.models.initialise._AT_ONCE", 1000)
    in_pieces = draw_parameters(LENET, scheme, KEYS)
    alone = draw_parameters(LENET, scheme, KEYS[7:8])
    for name, value in all_at_once.items():
        assert torch.equal(value, in_pieces[name])
        assert torch.equal(value[7], alone[name][0])


@pytest.mark.parametrize("scheme", [Uniform(), Torch()])
def test_trials_and_parameters_are_independent(scheme: Init) -> None:
    drawn = draw_parameters(LENET, scheme, KEYS)
    rows = torch.cat([drawn["conv2.weight"].flatten(1), drawn["conv3.weight"].flatten(1)]).double()
    correlation = torch.corrcoef(rows) - torch.eye(len(rows), dtype=torch.float64)
    assert correlation.abs().max() < 6 / math.sqrt(rows.shape[1])


def test_dtype_follows_the_model_and_float64_draws_the_same() -> None:
    double = LENET.with_parameters({name: value.double() for name, value in LENET.parameters.items()})
    wide, narrow = draw_parameters(double, Uniform(), KEYS[:2]), draw_parameters(LENET, Uniform(), KEYS[:2])
    assert all(value.dtype == torch.float64 for value in wide.values())
    assert all(torch.equal(value.float(), narrow[name]) for name, value in wide.items())


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    draw_parameters(LENET, Torch(), KEYS)
    assert torch.equal(before, torch.get_rng_state())


def test_names_lead_to_schemes() -> None:
    assert INITS["uniform"](a=0.2) == Uniform(0.2)
    assert (INITS["pytorch"](), INITS["given"]()) == (Torch(), Given())


def wrapped(model: Model) -> Model:
    return Model("wrapped", lambda p, b, x, k: model.apply(p, b, 2 * x, k), model.parameters, {}, model.input_shape, 10)


def test_what_cannot_be_drawn_is_refused() -> None:
    tokens = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    model = from_module(tokens, input_shape=(3,), example=torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match=r"Embedding .*'0.weight'.*'given'"):
        draw_parameters(model, Torch(), KEYS)
    with pytest.raises(InputError, match="layers of wrapped"):
        draw_parameters(wrapped(LENET), Torch(), KEYS)
    with pytest.raises(InputError, match=r"keys must\b"):
        draw_parameters(LENET, Uniform(), key(0))
    with pytest.raises(InputError, match=r"Uniform\.a .*got 0"):
        Uniform(0)


def test_a_bare_layer_has_plain_names() -> None:
    assert torch_bounds(nn.Linear(16, 2, bias=False)) == {"weight": Bound(-0.25, 0.25)}


def test_transformers_start_at_small_normal_weights_zero_biases_and_norms_of_one() -> None:
    model = build("gpt", (6,), 3, {"vocabulary": 50, "width": 32, "heads": 2})
    drawn = draw_parameters(model, Transformer(0.1), KEYS[:4])
    assert drawn.keys() == model.parameters.keys()
    for name, value in drawn.items():
        if "norm" in name:
            assert torch.all(value == (1 if name.endswith("weight") else 0))
        elif name.endswith("bias"):
            assert torch.all(value == 0)
        else:
            assert abs(float(value.std()) - 0.1) < 0.02, name
            assert abs(float(value.mean())) < 0.02, name
    assert torch.equal(
        drawn["network.head.weight"][2], draw_parameters(model, Transformer(0.1), KEYS[2:3])["network.head.weight"][0]
    )
    with pytest.raises(InputError):
        Transformer(0)
