"""Losses per example, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.tree import lift
from leakscope.learning.losses import LOSSES, cross_entropy, masked_mean, mse, one_hot, softmax_cross_entropy

SHAPES = {"examples": st.integers(1, 5), "classes": st.integers(1, 6), "seed": st.integers(0, 1000)}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_labels(seed: int, examples: int, classes: int) -> Tensor:
    return torch.randint(classes, (examples,), generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(**SHAPES)
def test_cross_entropy_of_hard_labels_is_torchs(examples: int, classes: int, seed: int) -> None:
    output, labels = 5 * draw(seed, examples, classes), draw_labels(seed, examples, classes)
    ours = cross_entropy(output, one_hot(labels, classes, torch.float64))
    assert_close(ours, F.cross_entropy(output, labels, reduction="none"), rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(**SHAPES)
def test_cross_entropy_of_soft_labels_is_torchs(examples: int, classes: int, seed: int) -> None:
    output, target = draw(seed, examples, classes), draw(seed + 1, examples, classes).softmax(-1)
    assert_close(
        cross_entropy(output, target), F.cross_entropy(output, target, reduction="none"), rtol=1e-12, atol=1e-12
    )


@settings(deadline=None, max_examples=30)
@given(**SHAPES)
def test_mse_is_torchs_averaged_over_classes(examples: int, classes: int, seed: int) -> None:
    output, target = draw(seed, examples, classes), draw(seed + 1, examples, classes)
    assert_close(mse(output, target), F.mse_loss(output, target, reduction="none").mean(-1), rtol=1e-12, atol=1e-12)


def test_softmax_cross_entropy_reads_the_softmax_as_logits() -> None:
    output, labels = draw(0, 4, 3), draw_labels(0, 4, 3)
    expected = F.cross_entropy(F.softmax(output, -1), labels, reduction="none")
    assert_close(softmax_cross_entropy(output, one_hot(labels, 3, torch.float64)), expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_of_extreme_logits_is_finite_and_exact() -> None:
    output = torch.tensor([[1e4, 0.0], [-1e4, 0.0]], dtype=torch.float64)
    assert_close(cross_entropy(output, torch.eye(2, dtype=torch.float64)[[1, 1]]), torch.tensor([1e4, 0.0]).double())


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_gives_one_value_per_example_and_treats_each_alone(name: str) -> None:
    output, target = draw(0, 3, 4), draw(1, 3, 4).softmax(-1)
    whole = LOSSES[name](output, target)
    alone = torch.stack([LOSSES[name](o[None], t[None])[0] for o, t in zip(output, target, strict=True)])
    assert whole.shape == (3,)
    assert_close(whole, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_passes_the_finite_difference_test_twice(name: str) -> None:
    output, target = draw(2, 2, 3).requires_grad_(), draw(3, 2, 3).softmax(-1).detach().requires_grad_()
    assert torch.autograd.gradcheck(LOSSES[name], (output, target))
    assert torch.autograd.gradgradcheck(LOSSES[name], (output, target))


@settings(deadline=None, max_examples=30)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_masked_mean_is_the_mean_of_those_kept_and_zero_of_none(mask: list[bool], seed: int) -> None:
    values = draw(seed, len(mask))
    kept = [float(v) for v, m in zip(values, mask, strict=True) if m]
    assert_close(masked_mean(values, torch.tensor(mask)).item(), sum(kept) / len(kept) if kept else 0.0)


def test_what_is_masked_does_not_matter_even_if_it_is_not_finite() -> None:
    values = torch.tensor([1.0, float("inf"), 3.0, float("nan")])
    assert masked_mean(values, torch.tensor([True, False, True, False])) == 2


@settings(deadline=None, max_examples=20)
@given(**SHAPES)
def test_one_hot_is_torchs_also_lifted_over_trials(examples: int, classes: int, seed: int) -> None:
    labels = torch.stack([draw_labels(seed + i, examples, classes) for i in range(3)])
    ours = lift(lambda y: one_hot(y, classes, torch.float32))(labels)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, F.one_hot(labels, classes).float())
