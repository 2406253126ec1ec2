"""Distances between updates against plain numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.distances import (
    DISTANCES,
    angle,
    cosine,
    cosine_per_tensor,
    disagreement,
    entropy,
    l1,
    l2,
    squared_l2,
)
from leakscope.core.tree import Tree, scale

torch.set_num_threads(1)
Vector = np.ndarray
SEEDS = st.integers(0, 10_000)


def tree(seed: int, *leading: int) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (2, 3), "b": (4,), "c": ()}
    return {n: torch.randn((*leading, *s), generator=generator, dtype=torch.float64) for n, s in shapes.items()}


def vectors(a: Tree) -> list[Vector]:
    return [value.numpy().reshape(-1) for value in a.values()]


def one_minus_cosine(u: Vector, v: Vector) -> float:
    return 1 - float(u @ v) / float(np.linalg.norm(u) * np.linalg.norm(v))


def wrong_share(u: Vector, v: Vector) -> float:
    return float((u[u * v < 0] ** 2).sum() / (u**2).sum())


def divergence(u: Vector, v: Vector) -> float:
    p, q = (np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)]) / np.abs(x).sum() for x in (u, v))
    terms = [a[a > 0] * np.log(2 * a[a > 0] / (a + b)[a > 0]) for a, b in ((p, q), (q, p))]
    return float(sum(term.sum() for term in terms)) / 2


SLOW: dict[str, Callable[[list[Vector], list[Vector]], float]] = {
    "squared_l2": lambda u, v: sum(float(((a - b) ** 2).sum()) for a, b in zip(u, v, strict=True)),
    "l2": lambda u, v: float(np.linalg.norm(np.concatenate(u) - np.concatenate(v))),
    "l2_per_tensor": lambda u, v: sum(float(np.linalg.norm(a - b)) for a, b in zip(u, v, strict=True)),
    "l1": lambda u, v: sum(float(np.abs(a - b).sum()) for a, b in zip(u, v, strict=True)),
    "cosine": lambda u, v: one_minus_cosine(np.concatenate(u), np.concatenate(v)),
    "cosine_per_tensor": lambda u, v: float(np.mean([one_minus_cosine(a, b) for a, b in zip(u, v, strict=True)])),
    "angle_per_tensor": lambda u, v: float(np.mean([2 * one_minus_cosine(x, y) for x, y in zip(u, v, strict=True)])),
    "angle": lambda u, v: 2 * one_minus_cosine(np.concatenate(u), np.concatenate(v)),
    "disagreement": lambda u, v: float(np.mean([wrong_share(a, b) for a, b in zip(u, v, strict=True)])),
    "entropy": lambda u, v: divergence(np.concatenate(u), np.concatenate(v)),
}


@pytest.mark.parametrize("name", sorted(DISTANCES))
@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, other=SEEDS)
def test_every_distance_is_its_slow_numpy_version(name: str, seed: int, other: int) -> None:
    a, b = tree(seed), tree(other + 20_000)
    assert DISTANCES[name](a, b).item() == pytest.approx(SLOW[name](vectors(a), vectors(b)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", sorted(DISTANCES))
@settings(deadline=None, max_examples=20)
@given(seed=SEEDS)
def test_every_distance_is_zero_at_equality_and_nowhere_negative(name: str, seed: int) -> None:
    a, b = tree(seed), tree(seed + 1)
    assert abs(DISTANCES[name](a, a)) < 1e-11
    assert DISTANCES[name](a, b) >= 0
    assert max(DISTANCES[name](a, b), DISTANCES[name](a, scale(b, -1.0))) > 0  # signs may all agree by chance


@pytest.mark.parametrize("name", sorted(DISTANCES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("zero", [(), ("simulated",), ("observed",), ("simulated", "observed")])
def test_gradients_are_finite_at_equality_and_at_zero(name: str, dtype: torch.dtype, zero: tuple[str, ...]) -> None:
    a = {n: v.to(dtype) for n, v in tree(0).items()}
    left, right = (scale(a, 0.0) if side in zero else a for side in ("simulated", "observed"))
    slope = torch.func.grad(DISTANCES[name])(left, right)
    assert all(bool(value.isfinite().all()) for value in slope.values())
    if not zero:
        assert all(bool((value.abs() < 1e-3).all()) for value in slope.values())


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_derivatives_pass_finite_differences(name: str) -> None:
    a, b = tree(1), tree(2)

    def value(*leaves: Tensor) -> Tensor:
        return DISTANCES[name](dict(zip(a, leaves, strict=True)), b)

    assert torch.autograd.gradcheck(value, [v.clone().requires_grad_() for v in a.values()])


BLIND = pytest.mark.parametrize("distance", [cosine, cosine_per_tensor, angle, disagreement, entropy])


@BLIND
@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, left=st.floats(1e-3, 1e3), right=st.floats(1e-3, 1e3))
def test_cosines_are_blind_to_the_scale_of_either_side(
    distance: Callable[[Tree, Tree], Tensor], seed: int, left: float, right: float
) -> None:
    a, b = tree(seed), tree(seed + 1)
    assert_close(distance(scale(a, left), scale(b, right)), distance(a, b), rtol=1e-8, atol=1e-8)


@BLIND
@pytest.mark.parametrize("size", [1e-6, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosines_stay_blind_to_scale_when_gradients_vanish(
    distance: Callable[[Tree, Tree], Tensor], size: float, dtype: torch.dtype
) -> None:
    """The first layers of a deep sigmoid network have gradients this small; they must still count."""
    a, b = ({n: v.to(dtype) for n, v in tree(s).items()} for s in (3, 4))
    assert_close(distance(scale(a, size), scale(b, size)), distance(a, b), rtol=1e-3, atol=1e-4)


def test_opposite_updates_have_cosine_distance_two_and_orthogonal_ones_one() -> None:
    a = tree(0)
    assert_close(cosine(a, scale(a, -3.0)), torch.tensor(2.0, dtype=torch.float64))
    left = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([2.0])}
    right = {"a": torch.tensor([0.0, 5.0]), "b": torch.tensor([0.0])}
    assert_close(cosine(left, right), torch.tensor(1.0))


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, factor=st.floats(0.01, 100))
def test_lengths_grow_with_the_scale(seed: int, factor: float) -> None:
    a, b = tree(seed), tree(seed + 1)
    wide = scale(a, factor), scale(b, factor)
    assert_close(l1(*wide), factor * l1(a, b))
    assert_close(l2(*wide), factor * l2(a, b))
    assert_close(squared_l2(*wide), factor**2 * squared_l2(a, b))


def test_the_angle_is_twice_the_cosine_where_that_can_still_be_told_from_zero() -> None:
    a = {n: v.to(torch.float32) for n, v in tree(0).items()}
    near = {n: v + 1e-5 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for n, v in a.items()}
    wide = [{n: v.double() for n, v in side.items()} for side in (near, a)]
    assert angle(near, a).item() == pytest.approx(angle(*wide).item(), rel=1e-2)
    assert abs(cosine(near, a).item() / cosine(*wide).item() - 1) > 0.1


def test_signs_say_nothing_where_zero_was_observed_and_everything_where_all_are_wrong() -> None:
    a = tree(0)
    assert disagreement(a, scale(a, 0.0)) == 0
    assert_close(disagreement(a, scale(a, -2.0)), torch.tensor(1.0, dtype=torch.float64))


def test_the_entropy_distance_of_opposed_updates_is_log_two() -> None:
    assert float(entropy(tree(3), scale(tree(3), -2.0))) == pytest.approx(np.log(2), rel=1e-9)
