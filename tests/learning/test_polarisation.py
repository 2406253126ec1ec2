"""The two heads against plain torch, and the laws of the polarization loss (lemma 5.5, propositions 5.1 to 5.3)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, to
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.learning.polarisation import (
    BIAS,
    CODES,
    WEIGHT,
    PolarisedLoss,
    polarisation_loss,
    with_codes,
    with_second_head,
)
from leakscope.models import build, from_module

BITS, CLASSES = 5, 3
KEY = random.key(0)


def hamming(a: Tensor, b: Tensor) -> Tensor:
    """Return `(K - a . b) / 2`, the number of bits in which two codes of -1 and +1 differ."""
    return (a.shape[-1] - (a * b).sum(-1)) / 2


def binary(output: Tensor) -> Tensor:
    """Return the code of an output: +1 where it is above 0, else -1."""
    return torch.where(output > 0, 1.0, -1.0).to(output.dtype)


def network(name: str = "lenet_dlg") -> Model:
    shape, chosen = {"lenet_dlg": ((1, 8, 8), {"width": 2}), "mlp": ((4,), {"hidden": (6,)}), "linear": ((4,), None)}[
        name
    ]
    return to(build(name, shape, CLASSES, chosen), dtype=torch.float64)


def secrets(model: Model, seed: int = 0) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    like = with_second_head(model, BITS).parameters
    made = {n: torch.randn(like[n].shape, generator=generator, dtype=torch.float64) for n in (WEIGHT, BIAS)}
    return made | {CODES: binary(torch.randn(CLASSES, BITS, generator=generator, dtype=torch.float64))}


def features_of(model: Model, x: Tensor) -> Tensor:
    """Return what enters the last layer, by a module without it."""
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict({**model.parameters, **model.buffers})
    module.head = nn.Identity()
    return module(x)


@pytest.mark.parametrize("name", ["lenet_dlg", "mlp", "linear"])
def test_both_heads_read_the_same_features(name: str) -> None:
    model, x = network(name), torch.rand(2, *network(name).input_shape, dtype=torch.float64)
    own = secrets(model)
    output, _ = with_second_head(model, BITS).apply({**model.parameters, **own}, model.buffers, x, KEY)
    assert output.shape == (2, CLASSES + BITS)
    assert_close(output[:, :CLASSES], model.apply(model.parameters, model.buffers, x, KEY)[0])
    assert_close(output[:, CLASSES:], F.linear(features_of(model, x), own[WEIGHT], own[BIAS]))


def test_a_head_without_bias_gets_a_private_head_without_bias() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, CLASSES, bias=False))
    model = from_module(module, input_shape=(4,))
    polarised = with_second_head(model, BITS)
    assert polarised.private == {WEIGHT, CODES}
    given_ = {**model.parameters, WEIGHT: torch.ones(BITS, 6)}
    assert polarised.apply(given_, {}, torch.rand(2, 4), KEY)[0].shape == (2, CLASSES + BITS)


def test_what_is_shared_is_the_public_network_alone() -> None:
    model = network()
    polarised = with_second_head(model, BITS)
    assert polarised.private == {WEIGHT, BIAS, CODES}
    assert set(polarised.shared(polarised.parameters)) == set(model.parameters)


@pytest.mark.parametrize("name", ["lenet_dlg", "mlp"])
@pytest.mark.parametrize(("a1", "a2", "margin"), [(1.0, 0.3, 1.0), (0.7, 0.3, 1.5), (0.0, 1.0, 2.0)])
def test_the_gradient_is_that_of_the_sum_written_out_in_torch(name: str, a1: float, a2: float, margin: float) -> None:
    model = network(name)
    x, y = torch.rand(4, *model.input_shape, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    own = secrets(model)
    weights = {n: v.clone().requires_grad_() for n, v in {**model.parameters, **own}.items() if n != CODES}
    backbone = {n: v for n, v in weights.items() if not n.startswith(("head", "polarisation"))}
    features = _features(model, backbone, x)
    u, v = (F.linear(features, weights[f"{head}.weight"], weights[f"{head}.bias"]) for head in ("head", "polarisation"))
    hinge = torch.stack(
        [sum(torch.relu(margin - v[i, k] * own[CODES][y[i], k]) for k in range(BITS)) for i in range(4)]
    )
    (a1 * F.cross_entropy(u, y) + a2 * hinge.mean()).backward()
    targets = with_codes(one_hot(y, CLASSES, torch.float64), own[CODES])
    loss = PolarisedLoss(cross_entropy, CLASSES, a1, a2, margin)
    moving = {n: w.detach() for n, w in weights.items()}
    made, _, _, _ = loss_and_gradient(
        with_second_head(model, BITS), loss, moving, {}, x, targets, torch.ones(4, dtype=torch.bool), KEY
    )
    assert_close(made, {n: w.grad for n, w in weights.items()}, rtol=1e-9, atol=1e-11)


def _features(model: Model, backbone: Tree, x: Tensor) -> Tensor:
    module = copy.deepcopy(model.apply.module).double()
    module.head = nn.Identity()
    return torch.func.functional_call(module, backbone, (x,))


def test_a_soft_label_mixes_the_codes_and_a_missing_code_is_refused() -> None:
    codes = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    assert_close(with_codes(torch.tensor([[0.25, 0.75]]), codes), torch.tensor([[0.25, 0.75, 1.0, 0.5]]))
    with pytest.raises(InputError, match=r"3 classes .*got 2"):
        with_codes(torch.eye(3), codes)


def test_a_network_that_does_not_end_in_a_dense_layer_is_refused() -> None:
    model = from_module(nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), input_shape=(4,))
    with pytest.raises(InputError, match="dense layer"):
        with_second_head(model, 8)


# -- the laws of the paper's appendix B; codes and outputs are drawn, so that every inequality can fail

outputs = st.lists(st.floats(-3, 3, allow_nan=False), min_size=1, max_size=8)


@st.composite
def points(draw: st.DrawFn, classes: int = 1) -> tuple[list[Tensor], Tensor]:
    """Return the outputs of the points of each class, and a code for each class."""
    bits = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)
    sizes = [draw(st.integers(1, 5)) for _ in range(classes)]
    scale = draw(st.sampled_from([0.1, 1.0, 4.0]))
    codes = binary(torch.randn(classes, bits, generator=generator))
    return [codes[c] + scale * torch.randn(n, bits, generator=generator) for c, n in enumerate(sizes)], codes


@given(outputs, st.floats(1, 3), st.integers(0, 255))
def test_lemma_5_5_the_loss_bounds_the_hamming_distance(values: list[float], margin: float, pattern: int) -> None:
    v = torch.tensor(values, dtype=torch.float64)
    t = torch.tensor([1.0 if pattern >> k & 1 else -1.0 for k in range(len(values))], dtype=torch.float64)
    assert hamming(binary(v), t) <= polarisation_loss(v, t, margin) + 1e-12


def test_lemma_5_5_needs_its_margin() -> None:
    v, t = torch.tensor([-0.1]), torch.tensor([1.0])
    assert hamming(binary(v), t) > polarisation_loss(v, t, margin=0.5)


@settings(max_examples=60, deadline=None)
@given(points())
def test_proposition_5_1_bounds_the_distances_inside_a_class(drawn: tuple[list[Tensor], Tensor]) -> None:
    (v,), (t,) = drawn
    inside = hamming(binary(v)[:, None], binary(v)[None]).mean()
    assert inside <= 2 * polarisation_loss(v, t).mean() + 1e-5


def averages(drawn: tuple[list[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (sum over classes of mean inner distances, the same between classes, between codes, sum of mean losses)."""
    v, t = drawn
    inner = sum(hamming(binary(x)[:, None], binary(x)[None]).mean() for x in v)
    pairs = [(x, y) for x in range(len(v)) for y in range(len(v)) if x != y]
    outer = sum(hamming(binary(v[x])[:, None], binary(v[y])[None]).mean() for x, y in pairs)
    codes = sum(hamming(t[x], t[y]) for x, y in pairs)
    losses = sum(polarisation_loss(x, c).mean() for x, c in zip(v, t, strict=True))
    return inner, outer, codes, losses


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4).flatmap(points))
def test_propositions_5_2_and_5_3_hold_between_classes(drawn: tuple[list[Tensor], Tensor]) -> None:
    inner, outer, codes, losses = averages(drawn)
    number = len(drawn[0])
    assert codes - outer <= 2 * (number - 1) * losses + 1e-4
    assert inner - outer <= 2 * number * losses - codes + 1e-4


def test_the_bounds_are_reached() -> None:
    """With every output just on its code, all losses and inner distances are 0 and the others are those of the codes."""
    codes = torch.tensor([[1.0, 1.0, -1.0], [-1.0, 1.0, 1.0]])
    inner, outer, between, losses = averages(([codes[:1], codes[1:]], codes))
    assert (inner, losses) == (0, 0)
    assert outer == between == 4
