"""What a dense layer's gradient says about its inputs: identities against autograd, and the batches it cannot tell apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.data.label_mix import cut_batches
from leakscope.learning.losses import LOSSES, cross_entropy, mse, one_hot
from leakscope_papers.theory.mixing import alignment, dense_gradient, output_errors, turned

SIZES = {"samples": st.integers(3, 6), "classes": st.integers(2, 5), "width": st.integers(4, 9)}


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_gradient_is_autograds(name: str) -> None:
    weight, bias, x = numbers(0, 4, 7), numbers(1, 4), numbers(2, 5, 7)
    target = one_hot(torch.tensor([0, 1, 2, 3, 3]), 4, torch.float64)
    found = dense_gradient(weight, bias, x, target, LOSSES[name])
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    expected = torch.autograd.grad(LOSSES[name](F.linear(x, w, b), target).mean(), (w, b))
    assert_close(found, expected)


@settings(deadline=None, max_examples=40)
@given(angle=st.floats(-3.1, 3.1), seed=st.integers(0, 1000), **SIZES)
def test_turning_keeps_sum_and_products(angle: float, seed: int, samples: int, classes: int, width: int) -> None:
    del classes
    x = numbers(seed, samples, width)
    other = turned(x, angle)
    assert_close(other.sum(0), x.sum(0), rtol=1e-9, atol=1e-9)
    assert_close(other.mT @ other, x.mT @ x, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(angle=st.floats(0.3, 2.8), seed=st.integers(0, 1000), **SIZES)
def test_mse_with_equal_labels_cannot_tell_a_batch_from_a_turned_one(
    angle: float, seed: int, samples: int, classes: int, width: int
) -> None:
    x, weight, bias = numbers(seed, samples, width), numbers(seed + 1, classes, width), numbers(seed + 2, classes)
    equal = one_hot(torch.zeros(samples, dtype=torch.int64), classes, torch.float64)
    other = turned(x, angle)
    assert float((other - x).abs().max()) > 1e-2
    ours, theirs = (dense_gradient(weight, bias, batch, equal, mse) for batch in (x, other))
    assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), samples=st.integers(3, 5))
def test_other_labels_or_cross_entropy_tell_them_apart(seed: int, samples: int) -> None:
    x, weight, bias = numbers(seed, samples, 8), numbers(seed + 1, 5, 8), numbers(seed + 2, 5)
    equal = one_hot(torch.zeros(samples, dtype=torch.int64), 5, torch.float64)
    mixed = one_hot(torch.arange(samples), 5, torch.float64)
    other = turned(x, 1.0)
    for target, loss in ((mixed, mse), (equal, cross_entropy), (mixed, cross_entropy)):
        ours, theirs = (dense_gradient(weight, bias, batch, target, loss)[0] for batch in (x, other))
        assert float((ours - theirs).abs().max()) > 1e-3


def test_alignment_of_known_errors() -> None:
    assert float(alignment(torch.eye(3))) == pytest.approx(0.0)
    assert float(alignment(torch.tensor([[1.0, 2.0], [-2.0, -4.0]]))) == pytest.approx(1.0)
    half = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]])
    assert float(alignment(half)) == pytest.approx(0.5, rel=1e-5)
    assert alignment(torch.stack([half, half])).shape == (2,)
    with pytest.raises(InputError, match="at least 2"):
        alignment(half[:1])


def test_equal_labels_align_the_errors_of_real_pictures() -> None:
    """A fresh dense layer on digits: with equal labels the errors of cross entropy are nearly parallel, with random ones not."""
    data = load("digits")
    labels = data.labels("test", slice(None))
    weight, bias = 0.1 * numbers(0, 10, 64).float(), torch.zeros(10)
    found = {}
    for mix in ("random", "equal"):
        batches = torch.tensor(cut_batches(labels, 4, mix)[:30])
        x = data.pictures("test", batches.reshape(-1)).reshape(len(batches), 4, 64)
        target = one_hot(labels[batches], 10, torch.float32)
        errors = torch.stack(
            [output_errors(F.linear(a, weight, bias), t, cross_entropy) for a, t in zip(x, target, strict=True)]
        )
        found[mix] = float(alignment(errors).mean())
    assert found["equal"] > 0.9
    assert found["random"] < 0.5


def test_two_inputs_cannot_be_turned() -> None:
    with pytest.raises(InputError, match="at least 3"):
        turned(numbers(0, 2, 4), 1.0)
