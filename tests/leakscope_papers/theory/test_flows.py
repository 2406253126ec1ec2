"""Proposition 4.1 and Corollary C.1 on convex flows, and the helix on which the idea fails."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope_papers.theory.flows import Slope, best_place, cosines_between, descend

FLOATS = st.floats(-2, 2, allow_nan=False)
FLOW = {"seed": st.integers(0, 999), "bend": st.floats(0, 2), "time": st.floats(0.05, 3)}


def follow(slope: Slope, start: Tensor, *, time: float, steps: int) -> Tensor:
    """Return steps + 1 points of the flow `w' = -slope(w)` (Runge and Kutta, order 4)."""
    h, way = time / steps, [start]
    for _ in range(steps):
        w = way[-1]
        k1 = -slope(w)
        k2 = -slope(w + h / 2 * k1)
        k3 = -slope(w + h / 2 * k2)
        k4 = -slope(w + h * k3)
        way.append(w + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    return torch.stack(way)


def goes_along(slope: Slope, way: Tensor) -> bool:
    """Return whether the condition of Proposition 4.1 holds: `<slope(w(t)), w_0 - w_T> >= 0` at every point."""
    update = way[0] - way[-1]
    return all(bool(slope(point) @ update >= 0) for point in way)


def parallel_places(slope: Slope, before: Tensor, after: Tensor, *, points: int = 201, halvings: int = 60) -> Tensor:
    """Return the places a on the line (in two dimensions) whose slope is parallel to `before - after`, by bisection.

    The part of the slope across the line changes sign between two neighbours of `points` places, or is 0 at one of them.
    """
    update = before - after
    across = torch.stack([-update[1], update[0]])

    def side(alpha: Tensor) -> Tensor:
        return slope(before + alpha * (after - before)) @ across

    grid = torch.linspace(0, 1, points, dtype=before.dtype)
    sides = torch.stack([side(a) for a in grid])
    found = [a for a, s in zip(grid, sides, strict=True) if s == 0]
    for k in (sides[:-1] * sides[1:] < 0).nonzero()[:, 0].tolist():
        low, high, sign = grid[k], grid[k + 1], sides[k].sign()
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if side(middle).sign() == sign else (low, middle)
        found.append((low + high) / 2)
    return torch.stack(found) if found else grid[:0]


def helix_slope(w: Tensor) -> Tensor:
    """Return the field of the paper's counterexample, whose flow from the origin is (cos t - 1, sin t, t).

    It depends on the third coordinate alone, `-(-sin z, cos z, 1)`. Such a field has a curl, so it is the gradient of no loss;
    the paper takes it as what gradients may look like nearby.
    """
    z = w[2]
    return -torch.stack([-z.sin(), z.cos(), torch.ones_like(z)])


class Convex:
    """A random convex loss: a quadratic and a soft maximum of linear functions."""

    def __init__(self, seed: int, dimensions: int, bend: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        root = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
        self.matrix = root @ root.T / dimensions + 0.05 * torch.eye(dimensions, dtype=torch.float64)
        self.directions = torch.randn(4, dimensions, generator=generator, dtype=torch.float64)
        self.bend = bend

    def loss(self, w: Tensor) -> Tensor:
        return w @ self.matrix @ w / 2 + self.bend * torch.logsumexp(self.directions @ w, 0)

    def slope(self, w: Tensor) -> Tensor:
        return self.matrix @ w + self.bend * self.directions.T @ torch.softmax(self.directions @ w, 0)


def begun(values: list[float], seed: int, bend: float, time: float) -> tuple[Convex, Tensor]:
    """A loss and its flow; flows that hardly move say nothing."""
    loss = Convex(seed, len(values), bend)
    way = follow(loss.slope, torch.tensor(values, dtype=torch.float64), time=time, steps=60)
    assume(float((way[0] - way[-1]).norm()) > 1e-2)
    return loss, way


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(start=st.lists(FLOATS, min_size=2, max_size=2), **FLOW)
def test_in_the_plane_a_gradient_on_the_line_points_along_the_update(
    start: list[float], seed: int, bend: float, time: float
) -> None:
    """Proposition 4.1, convex: under its condition the cosine reaches 1."""
    loss, way = begun(start, seed, bend, time)
    assume(goes_along(loss.slope, way))
    places = parallel_places(loss.slope, way[0], way[-1])
    assert len(places) >= 1
    cosines = cosines_between(loss.slope, way[0], way[-1], places)
    assert float(cosines.max()) == pytest.approx(1, abs=1e-6)
    assert bool((cosines > 0).all())  # convex: never the other way


@settings(deadline=None, max_examples=40)
@given(start=st.lists(FLOATS, min_size=2, max_size=5), **FLOW)
def test_convex_flows_never_oppose_their_update_on_the_line(
    start: list[float], seed: int, bend: float, time: float
) -> None:
    """Corollary C.1, in any dimension."""
    loss, way = begun(start, seed, bend, time)
    cosines = cosines_between(loss.slope, way[0], way[-1], torch.linspace(0, 1, 41, dtype=torch.float64))
    assert bool((cosines >= -1e-9).all())


def test_the_best_place_is_the_one_that_bisection_finds() -> None:
    matrix = torch.tensor([[3.0, 0.4], [0.4, 1.0]], dtype=torch.float64)
    way = follow(lambda w: matrix @ w, torch.tensor([1.0, 1.0], dtype=torch.float64), time=0.7, steps=60)
    place, cosine = best_place(lambda w: matrix @ w, way[0], way[-1], zooms=6)
    assert float(cosine) == pytest.approx(1, abs=1e-12)
    assert float(place) == pytest.approx(float(parallel_places(lambda w: matrix @ w, way[0], way[-1])[0]), abs=1e-4)


def test_the_helix_has_the_cosine_of_45_degrees_everywhere_on_its_line() -> None:
    way = follow(helix_slope, torch.zeros(3, dtype=torch.float64), time=2 * math.pi, steps=400)
    t = torch.linspace(0, 2 * math.pi, 401, dtype=torch.float64)
    assert_close(way, torch.stack([t.cos() - 1, t.sin(), t], 1), atol=1e-8, rtol=0)
    cosines = cosines_between(helix_slope, way[0], way[-1], torch.linspace(0, 1, 33, dtype=torch.float64))
    assert_close(cosines, torch.full_like(cosines, 1 / math.sqrt(2)))


def test_the_helix_field_is_the_gradient_of_no_loss() -> None:
    """A gradient has a symmetric derivative; this one has not."""
    derivative = torch.func.jacrev(helix_slope)(torch.tensor([0.0, 0.0, 0.7]))
    assert not torch.allclose(derivative, derivative.T)


def test_a_flow_is_the_exponential_for_a_quadratic_and_the_limit_of_descent() -> None:
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    start = torch.tensor([1.0, -1.0], dtype=torch.float64)
    way = follow(lambda w: matrix @ w, start, time=1.5, steps=200)
    assert_close(way[-1], torch.linalg.matrix_exp(-1.5 * matrix) @ start)
    far, near = (descend(lambda w: matrix @ w, start, rate=1.5 / n, steps=n)[-1] for n in (50, 500))
    assert float((near - way[-1]).norm()) < float((far - way[-1]).norm()) / 5


def test_an_update_of_one_tiny_step_is_parallel_everywhere() -> None:
    matrix = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
    way = descend(lambda w: matrix @ w, torch.tensor([1.0, 1.0], dtype=torch.float64), rate=1e-6, steps=1)
    assert float(cosines_between(lambda w: matrix @ w, way[0], way[1], torch.zeros(1).double())[0]) == pytest.approx(1)
