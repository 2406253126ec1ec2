"""CPL's theorem 1 where it holds, and one dense layer where it does not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.learning.losses import cross_entropy, mse, one_hot
from leakscope.models import build
from leakscope_papers.theory.descent import Function, bulge, linear_match
from leakscope_papers.theory.flows import descend


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def theorem_bound(start: Tensor, best: Tensor, *, smoothness: float, steps: int) -> Tensor:
    """Return `2 L |x_0 - x*|^2 / T`, what theorem 1 lets `f(x_T) - f(x*)` be at most."""
    return 2 * smoothness * (start - best).square().sum() / steps


def quadratic(curvature: Tensor, best: Tensor) -> Function:
    """Return `f(x) = (x - x*)^T A (x - x*) / 2`; convex where A has no negative eigenvalue, smooth by its largest."""

    def function(x: Tensor) -> Tensor:
        apart = x - best
        return (apart @ curvature @ apart) / 2

    return function


PROBLEMS = {
    "seed": st.integers(0, 10_000),
    "size": st.integers(1, 6),
    "rank": st.integers(1, 6),
    "scale": st.floats(1e-3, 1e3),
    "steps": st.integers(1, 40),
}


@settings(deadline=None, max_examples=100)
@given(**PROBLEMS)
def test_descent_on_a_convex_quadratic_keeps_the_bound(
    seed: int, size: int, rank: int, scale: float, steps: int
) -> None:
    """Also where the curvature is singular (rank < size): convex is enough, and any of the minima will do."""
    root = numbers(seed, size, min(rank, size))
    curvature, best, start = scale * root @ root.T, numbers(seed + 1, size), numbers(seed + 2, size)
    smoothness = float(torch.linalg.eigvalsh(curvature)[-1])
    function = quadratic(curvature, best)
    path = descend(torch.func.grad(function), start, rate=1 / smoothness, steps=steps)
    values = torch.stack([function(point) for point in path])
    assert bool((values[1:] <= values[:-1] * (1 + 1e-9) + 1e-12).all())
    for taken in range(1, steps + 1):
        bound = theorem_bound(start, best, smoothness=smoothness, steps=taken)
        assert float(values[taken]) <= float(bound) * (1 + 1e-9)
        tight = bound * taken / (2 * (4 * taken + 2))  # L |x0 - x*|^2 / (4 T + 2)
        assert float(values[taken]) <= float(tight) * (1 + 1e-9)


def test_the_bound_is_no_matter_of_course_a_step_too_long_breaks_it() -> None:
    best, start = vector(0.0), vector(1.0)
    function = quadratic(torch.eye(1, dtype=torch.float64), best)
    path = descend(torch.func.grad(function), start, rate=2.5, steps=20)  # a step of 2.5 / L
    assert float(function(path[-1])) > float(theorem_bound(start, best, smoothness=1.0, steps=20))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 4), share=st.floats(0, 1))
def test_a_convex_quadratic_never_bulges(seed: int, size: int, share: float) -> None:
    root = numbers(seed, size, size)
    function = quadratic(root @ root.T, numbers(seed + 1, size))
    assert float(bulge(function, numbers(seed + 2, size), numbers(seed + 3, size), share)) <= 1e-9


@pytest.mark.parametrize("loss", [mse, cross_entropy])
def test_the_mismatch_is_that_of_the_library_on_one_dense_layer(loss: object) -> None:
    """`linear_match` against plain autograd through the catalogue's `linear`."""
    model = build("linear", (3,), 4)
    weight, bias = numbers(1, 4, 3), numbers(2, 4)
    target = one_hot(torch.tensor([2]), 4, torch.float64)
    chosen = mse if loss is mse else cross_entropy

    def update(x: Tensor) -> Tensor:
        weights = {"head.weight": weight.clone().requires_grad_(), "head.bias": bias.clone().requires_grad_()}
        output, _ = model.apply(weights, {}, x[None], torch.tensor(0))
        found = torch.autograd.grad(chosen(output, target).mean(), list(weights.values()))
        return torch.cat([part.flatten() for part in found])

    secret, guess = numbers(3, 3), numbers(4, 3)
    mine = linear_match(weight, bias, target[0], secret, chosen)
    assert_close(mine(guess), (update(guess) - update(secret)).square().sum())
    assert float(mine(secret)) == 0


def test_gradient_matching_is_not_convex_for_one_linear_layer_and_a_squared_loss() -> None:
    """o = x, loss (x - 1)^2, secret 2: D(-1) = 36, D(2) = 0, and D(0.5) = 29.25 lies over their mean 18."""
    match = linear_match(torch.eye(1, dtype=torch.float64), vector(0.0), vector(1.0), vector(2.0), mse)
    assert [float(match(vector(x))) for x in (-1.0, 0.5, 2.0)] == pytest.approx([36.0, 29.25, 0.0])
    assert float(bulge(match, vector(-1.0), vector(2.0))) == pytest.approx(11.25)


@pytest.mark.slow
def test_gradient_matching_is_not_convex_for_softmax_regression_and_descent_runs_away() -> None:
    """One input, two classes, W = (1, -1), b = 0, label 0, secret -1: from x_0 = 3 every small step leads away from -1."""
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    secret, start = vector(-1.0), vector(3.0)
    match = linear_match(weight, vector(0.0, 0.0), vector(1.0, 0.0), secret, cross_entropy)
    assert float(bulge(match, secret, vector(6.0))) > 1.5
    points = torch.linspace(-2, 12, 400, dtype=torch.float64)[:, None]
    bend = torch.func.vmap(torch.func.grad(lambda x: torch.func.grad(match)(x)[0]))(points)
    smoothness = float(bend.abs().max())  # on all of [-2, 12], where the path stays
    steps = 2000
    path = descend(torch.func.grad(match), start, rate=1 / smoothness, steps=steps)
    assert bool((path[1:] > path[:-1]).all())
    assert float(path.max()) < 12
    assert float(match(path[-1])) > 3
    assert float(theorem_bound(start, secret, smoothness=smoothness, steps=steps)) < 1
