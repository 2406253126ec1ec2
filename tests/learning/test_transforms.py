"""Differentiable operations: close to the client's bytes, right slopes, the same under vmap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.defences.on_data import OPERATIONS, apply
from leakscope.learning.transforms import transform, transform_once

DISTINCT = sorted({(op.kind, op.magnitude) for op in OPERATIONS})
EACH = pytest.mark.parametrize(("kind", "magnitude"), DISTINCT, ids=[f"{k}-{m:.3g}" for k, m in DISTINCT])
LINEAR = ("translate_x", "translate_y", "shear_y")


def colour(number: int = 6) -> Tensor:
    """Real textures in three channels: shirts of three pictures as red, green and blue."""
    return load("fashion_mnist").pictures("test", range(3 * number)).reshape(number, 3, 28, 28)


@EACH
@pytest.mark.parametrize("sign", [1, -1])
def test_a_smooth_operation_is_the_clients_up_to_rounding(kind: str, magnitude: float, sign: int) -> None:
    for pictures in (colour(), colour()[:, :1]):
        signs = torch.full((len(pictures),), sign)
        exact = apply(pictures, next(op for op in OPERATIONS if (op.kind, op.magnitude) == (kind, magnitude)), signs)
        made = transform_once(pictures, kind, magnitude, signs)
        gap = (made - exact).abs() * 255
        assert (gap <= 2).float().mean() >= 0.99
        assert gap.max() <= 3


@EACH
def test_slopes_agree_with_finite_differences(kind: str, magnitude: float) -> None:
    if kind in ("posterize", "equalize"):
        pytest.skip("straight-through by design; tested below")
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand((2, 3, 7, 6), generator=generator, dtype=torch.float64) * 0.5 + 0.2
    strength = torch.tensor([1.0, -1.0], dtype=torch.float64)
    weight, along = (torch.rand(pictures.shape, generator=generator, dtype=torch.float64) for _ in range(2))

    def value(x: Tensor) -> Tensor:
        return (transform_once(x, kind, magnitude, strength) * weight).sum()

    step = 1e-7
    slope = (value(pictures + step * along) - value(pictures - step * along)) / (2 * step)
    torch.testing.assert_close((grad(value)(pictures) * along).sum(), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [*LINEAR, "brightness", "contrast", "color", "sharpness"])
def test_slopes_in_the_strength_agree_with_finite_differences(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    pictures = torch.rand((2, 3, 9, 8), generator=generator, dtype=torch.float64) * 0.3 + 0.3
    weight = torch.rand(pictures.shape, generator=generator, dtype=torch.float64)

    def value(s: Tensor) -> Tensor:
        return (transform_once(pictures, kind, 0.3, s) * weight).sum()

    at = torch.tensor([0.313, -0.471], dtype=torch.float64)
    for along in torch.eye(2, dtype=torch.float64):
        slope = (value(at + 1e-6 * along) - value(at - 1e-6 * along)) / 2e-6
        torch.testing.assert_close((grad(value)(at) * along).sum(), slope, rtol=1e-5, atol=1e-7)


@EACH
def test_many_at_once_are_one_after_the_other(kind: str, magnitude: float) -> None:
    stack = torch.rand(4, 2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    strength = torch.tensor([[1.0, -1.0]] * 4)

    def value(x: Tensor, s: Tensor) -> Tensor:
        return transform_once(x, kind, magnitude, s).square().sum()

    together = vmap(grad(value))(stack, strength)
    for i in range(4):
        torch.testing.assert_close(together[i], grad(value)(stack[i], strength[i]))


def test_posterize_is_straight_through_and_equalize_rises() -> None:
    x = colour(1)
    s = torch.ones(1)
    ones = grad(lambda x: transform_once(x, "posterize", 6, s).sum())(x)
    assert torch.equal(ones, torch.ones_like(x))
    rises = grad(lambda x: transform_once(x, "equalize", 0, s).sum())(x)
    assert (rises >= 0).all()
    assert (rises > 0).float().mean() > 0.5


def test_a_policy_is_its_steps_in_order() -> None:
    x, s = colour(2), torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    steps = (("translate_x", 0.4), ("contrast", 0.3), ("translate_y", 0.1))
    slow = x
    for number, (kind, magnitude) in enumerate(steps):
        slow = transform_once(slow, kind, magnitude, s[:, number])
    assert torch.equal(transform(x, steps, s), slow)
    assert torch.equal(transform(x, (), s), x)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="unknown operation 'blur'"):
        transform_once(colour(1), "blur", 1.0, torch.ones(1))
