"""Spans of inputs: the decompositions agree with torch's own, and what only one sentence explains with a projection on all others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope.attacks.exact.sentence_proof import _collect as collect
from leakscope.attacks.exact.spans import largest_singular_value, off_span, singular_values, thin_svd


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (9, 9), (1, 5), (5, 1)])
def test_the_thin_svd_is_that_of_torch(shape: tuple[int, int]) -> None:
    x = drawn(*shape)
    left, sizes, right = thin_svd(x)
    assert left.shape == (shape[0], min(shape))
    assert right.shape == (min(shape), shape[1])
    assert torch.allclose(left * sizes @ right, x, atol=1e-13)
    assert torch.allclose(sizes, torch.linalg.svdvals(x))
    assert torch.allclose(singular_values(x), torch.linalg.svdvals(x))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_the_largest_singular_value_is_the_spectral_norm_at_any_scale(scale: float) -> None:
    x = scale * drawn(3, 6, 20)
    assert torch.allclose(largest_singular_value(x), torch.linalg.matrix_norm(x, 2), rtol=1e-12, atol=0)
    assert torch.allclose(largest_singular_value(x.mT), torch.linalg.matrix_norm(x, 2), rtol=1e-12, atol=0)


def test_the_distance_from_a_span_is_that_from_its_complement() -> None:
    whole = torch.linalg.qr(drawn(12, 12)).Q
    x = drawn(5, 12, seed=1)
    beside = (x @ whole[:, 4:]).norm(dim=1) / x.norm(dim=1)
    assert torch.allclose(off_span(x, whole[:, :4]), beside)


@pytest.mark.parametrize("width", [9, 30])
def test_what_only_one_sentence_explains_is_what_the_others_leave(width: int) -> None:
    """Also where sentences share inputs, one lies in the span of the others, and inputs are more than dimensions (width 9)."""
    inputs = [torch.nn.functional.normalize(drawn(4, width, seed=seed), dim=1) for seed in range(3)]
    inputs[1][:2] = inputs[0][:2]
    mixed = inputs[0][:1] + inputs[2][1:2]
    inputs.append(mixed / mixed.norm())
    rows = drawn(6, 13, seed=9) @ torch.cat(inputs)
    known = collect(inputs)
    assert float(known.outside(rows).norm()) < 1e-12
    for k in range(len(inputs)):
        others = torch.cat([each for j, each in enumerate(inputs) if j != k])
        left = rows - rows @ torch.linalg.pinv(others, rtol=1e-11) @ others
        own = known.own(k)
        assert float((others @ own).norm()) < 1e-11
        assert torch.allclose(rows @ own @ own.mT, left, atol=1e-10)
    assert known.own(3).shape[1] == 0
