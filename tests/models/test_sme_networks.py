"""The networks of SME's appendix G: sizes, layers, and their outputs against a plain computation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tests.models.test_second_order import TRIALS, many_at_once, one_by_one, with_random_statistics
from torch import Tensor, nn

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense
from leakscope.core.tree import count
from leakscope.models import INITS, MODELS, Uniform, build, draw_parameters, find_shortfall, from_module

NAMES = ("mlp_sme", "lenet_sme", "resnet8", "vit")
SMALL: dict[str, dict[str, object]] = {
    "mlp_sme": {"hidden": (7, 6)},
    "lenet_sme": {"filters": (2, 3)},
    "resnet8": {"width": 2, "hidden": 5, "activation": "tanh"},
    "vit": {"width": 8, "heads": 2, "depth": 2, "patch": 6},
}
BLOCK = 2 * 768 + 4 * 384 * 384 + 384 + 2 * 2 * 384 * 384 + 3 * 384


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp_sme", 784 * 1000 + 1000 + 1000 * 1000 + 1000 + 62_062),
        ("lenet_sme", 156 + 2416 + 400 * 120 + 120 + 120 * 84 + 84 + 84 * 62 + 62),
        (
            "resnet8",
            # stem; three blocks of two convolutions and norms; two shortcuts; the dense layers
            (288 + 64)
            + (2 * 9 * 32 * 32 + 128)
            + (9 * 32 * 64 + 9 * 64 * 64 + 256 + 32 * 64 + 128)
            + (9 * 64 * 128 + 9 * 128 * 128 + 512 + 64 * 128 + 256)
            + 2048 * 1000
            + 1000
            + 62_062,
        ),
        ("vit", 784 * 384 + 384 + 384 + 2 * 384 + 4 * BLOCK - 768 + 768 + 384 * 768 + 768 + 768 * 62 + 62),
    ],
)
def test_sizes_are_the_authors(name: str, expected: int) -> None:
    assert count(build(name, (1, 28, 28), 62).parameters) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 13, 30)])
def test_any_picture_gives_logits(name: str, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        module = MODELS[name](input_shape=shape, classes=7).eval()
        assert module(torch.empty(2, *shape)).shape == (2, 7)


def test_what_can_be_read_off_each() -> None:
    heads = {
        name: build(name, (1, 28, 28), 5, SMALL[name] | ({"patch": 14} if name == "vit" else {})).head for name in NAMES
    }
    assert heads["mlp_sme"] is None  # its logits went through a ReLU
    assert all(heads[name] == Dense("head.weight", "head.bias") for name in NAMES[1:])


@pytest.mark.parametrize("name", NAMES)
def test_many_trials_share_one_vmap(name: str) -> None:
    assert find_shortfall(build(name, (1, 12, 12), 3, SMALL[name])) is None


@pytest.mark.parametrize("name", NAMES)
def test_second_order_gradients_agree_with_plain_autograd(name: str) -> None:
    shape = (1, 12, 12)
    module = with_random_statistics(MODELS[name](input_shape=shape, classes=3, **SMALL[name]).double().eval())
    model = from_module(module, input_shape=shape)
    keys = random.key(range(TRIALS))
    weights = draw_parameters(model, Uniform(0.5), keys)
    target = {n: 0.1 * value for n, value in draw_parameters(model, Uniform(0.5), keys + 100).items()}
    x = random.uniform(random.fold(keys, "x"), (2, *shape), torch.float64)
    y = torch.tensor([[0, 1], [2, 2], [1, 0]])
    got = many_at_once(model, weights, x, y, target)
    expected = one_by_one(copy.deepcopy(module), weights, x, y, target)
    assert expected.abs().max() > 1e-12
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_the_mlps_logits_cannot_be_negative_and_its_layers_have_relu_between() -> None:
    module = MODELS["mlp_sme"]()
    assert [type(layer).__name__ for layer in module] == ["Flatten", *["Linear", "ReLU"] * 3]
    assert bool((module(torch.randn(4, 1, 28, 28)) >= 0).all())


def test_resnet8_has_no_activation_between_its_dense_layers() -> None:
    layers = [type(layer).__name__ for layer in MODELS["resnet8"]()]
    assert layers[-4:] == ["AvgPool2d", "Flatten", "Linear", "Linear"]


def attend(x: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """Attention, one sample, one head and one token after the other."""
    out = torch.zeros_like(x)
    width = x.shape[-1]
    size = width // heads
    for n in range(x.shape[0]):
        q, k, v = (x[n] @ w["project.weight"].T).split(width, dim=-1)
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for t in range(x.shape[1]):
                share = torch.softmax(k[:, part] @ q[t, part] / math.sqrt(size), 0)
                out[n, t, part] = share @ v[:, part]
    return out @ w["out.weight"].T + w["out.bias"]


def test_the_vit_agrees_with_its_definition_written_out() -> None:
    width, heads, side = 8, 2, 6
    module = MODELS["vit"](input_shape=(2, 12, 12), classes=3, width=width, heads=heads, depth=2, patch=side).double()
    x = random.uniform(random.key(0), (2, 2, 12, 12), torch.float64)
    drawn = draw_parameters(from_module(module, input_shape=(2, 12, 12)), Uniform(0.5), random.key([4]))
    w = {name: value[0] for name, value in drawn.items()}
    module.load_state_dict(w)
    corners = [(i, j) for i in (0, side) for j in (0, side)]
    patches = torch.stack([x[:, :, i : i + side, j : j + side].flatten(1) for i, j in corners], 1)
    tokens = patches @ w["patches.dense.weight"].T + w["patches.dense.bias"]
    tokens = torch.cat([w["tokens.token"].expand(2, 1, width), tokens], 1) + w["tokens.position"]
    for block in ("block1", "block2"):
        own = {n.removeprefix(f"{block}."): v for n, v in w.items() if n.startswith(block)}
        inner = {n.removeprefix("attention."): v for n, v in own.items() if n.startswith("attention.")}
        if block == "block1":  # neither norm nor skip
            tokens = attend(tokens, inner, heads)
        else:
            normed = F.layer_norm(tokens, (width,), own["norm1.weight"], own["norm1.bias"])
            tokens = tokens + attend(normed, inner, heads)
        normed = F.layer_norm(tokens, (width,), own["norm2.weight"], own["norm2.bias"])
        hidden = F.gelu(normed @ own["dense1.weight"].T + own["dense1.bias"])
        tokens = tokens + hidden @ own["dense2.weight"].T + own["dense2.bias"]
    first = F.layer_norm(tokens[:, 0], (width,), w["norm.weight"], w["norm.bias"])
    top = F.gelu(first @ w["dense.weight"].T + w["dense.bias"])
    torch.testing.assert_close(module(x), top @ w["head.weight"].T + w["head.bias"])


def test_the_lenet_is_the_classical_one() -> None:
    module = MODELS["lenet_sme"]()
    sizes = [tuple(layer.weight.shape) for layer in module if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert sizes == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (62, 84)]
    assert sum(isinstance(layer, nn.Tanh) for layer in module) == 4


@pytest.mark.parametrize(
    ("name", "shape", "settings", "message"),
    [
        ("vit", (1, 28, 28), {"patch": 9}, "side 9, .*28x28"),
        ("vit", (1, 28, 28), {"width": 10, "heads": 4}, "width .*of heads"),
        ("lenet_sme", (1, 8, 8), {}, "least 12x12"),
        ("resnet8", (1, 28, 28), {"width": 0}, "width .*whole number"),
        ("mlp_sme", (5,), {"hidden": ()}, "hidden must be"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(
    name: str, shape: tuple[int, ...], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(name, shape, 5, settings)


def test_lecun_weights_have_the_variance_of_their_inputs_and_no_tail() -> None:
    """Against a normal cut off by rejection: the same quantiles."""
    model = build("mlp", (40,), 30, {"hidden": (60,)})
    drawn = draw_parameters(model, INITS["lecun"](), random.key(range(20)))
    for name, inputs in (("dense1.weight", 40), ("head.weight", 60)):
        values = drawn[name].flatten() * math.sqrt(inputs)
        assert float(values.var()) == pytest.approx(1, abs=0.03)
        assert float(values.abs().max()) <= 2 / 0.8796 + 1e-4
        plain = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
        kept = plain[plain.abs() < 2] / 0.8796
        marks = torch.linspace(0.05, 0.95, 19)
        torch.testing.assert_close(values.quantile(marks), kept[:100_000].quantile(marks), atol=0.02, rtol=0)
    assert not drawn["dense1.bias"].any()
    assert torch.equal(
        draw_parameters(model, INITS["lecun"](), random.key([3]))["head.weight"][0], drawn["head.weight"][3]
    )
