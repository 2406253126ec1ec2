"""APRIL's term: the cosine of a position embedding's gradient, which fixes the input where only attention reads it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from leakscope.attacks.priors import PositionGradient
from leakscope.attacks.recipes import ig
from leakscope.attacks.view import Clock, Simulated, View
from leakscope.clients import Client, attacker_knowledge
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, Round, make_batch
from leakscope.models import build
from leakscope.models.vit import vit

torch.set_num_threads(1)


def view(position: torch.Tensor, other: torch.Tensor) -> View:
    a, b = {"position": position, "w": torch.ones(2)}, {"position": other, "w": torch.zeros(2)}
    nothing = torch.zeros(())
    return View({}, Simulated(a, nothing, nothing), b, Round({}, {}, b), Knowledge((2,), 2, 1), Clock(nothing, nothing))


def test_the_term_is_one_minus_the_cosine_of_that_tensor_alone() -> None:
    a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])
    assert_close(PositionGradient("position", 2.0)(view(a, b)), torch.tensor(2 * (1 - 24 / 25)))
    assert_close(PositionGradient("position")(view(a, 7 * a)), torch.tensor(0.0))
    with pytest.raises(InputError, match="tensor"):
        PositionGradient("embedding")(view(a, b))


def test_behind_a_bare_attention_the_positions_gradient_fixes_the_tokens() -> None:
    torch.manual_seed(0)
    net = vit(input_shape=(1, 4, 4), patch=2, width=8, heads=2, depth=1, classes=3).double()
    inputs: list[torch.Tensor] = []
    net.block1.attention.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))  # type: ignore[union-attr, operator]
    nn.functional.cross_entropy(net(torch.rand(1, 1, 4, 4).double()), torch.tensor([1])).backward()
    weights = dict(net.named_parameters())
    position, projection = weights["tokens.position"].grad, weights["block1.attention.project.weight"]
    assert position is not None
    assert projection.grad is not None
    right = projection.mT @ projection.grad  # W_q^T dW_q + W_k^T dW_k + W_v^T dW_v
    assert_close(position[0].mT @ inputs[0][0], right)
    assert float(right.detach().norm()) > 1e-9


def observed_of(name: str) -> tuple[Model, Observation, Knowledge]:
    settings = {"patch": 2, "width": 8, "heads": 2, "depth": 1} if name == "vit" else {}
    model = build(name, (1, 4, 4), 3, settings)
    batch = make_batch(torch.rand(1, 1, 1, 4, 4), torch.tensor([[1]]), classes=3)
    client = Client()
    seen = client.observe(model, {key: value[None] for key, value in model.parameters.items()}, batch, [0])
    return model, seen, attacker_knowledge(model, client, batch)


def test_ig_weighs_the_positions_of_a_vit() -> None:
    model, seen, knowledge = observed_of("vit")
    plain, april = (ig(iterations=3, position=weight).run(model, seen, knowledge, [0]) for weight in (0.0, 5.0))
    assert not torch.equal(plain.inputs, april.inputs)
    (term,) = [each for each in ig(position=5.0).priors if isinstance(each, PositionGradient)]
    assert term.weight == 5.0


def test_networks_without_positions_are_named_and_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="position"):
        ig(iterations=1, position=1.0).run(*observed_of("linear"), [0])
    with pytest.raises(InputError):
        ig(position=-1.0)
