"""APRIL's term: the cosine of a position embedding's gradient, which fixes the input where only attention reads it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from leakscope.attacks.priors import PositionGradient
from leakscope.attacks.view import Clock, Simulated, View
from leakscope.core.errors import InputError
from leakscope.core.types import Knowledge, Round
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
