"""SME's bounds: the formulas as printed, the constants of quadratics, and bounds that hold where their conditions do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope_papers.theory.bounds import (
    Constants,
    bound_gd,
    bound_sgd,
    bounds_of,
    c_gd,
    confidence,
    local_constants,
    lowest_near,
)
from leakscope_papers.theory.flows import descend
from leakscope_papers.theory.plane import off_plane, shares_in_plane


def quadratic(values: list[float]) -> Tensor:
    return torch.diag(torch.tensor(values, dtype=torch.float64))


@pytest.mark.slow
def test_constants_of_a_quadratic_are_its_eigenvalues() -> None:
    matrix = quadratic([4.0, 1.0, 0.5])
    points = torch.tensor([[1.0, 0, 0], [0, 2.0, 0]], dtype=torch.float64)
    found = local_constants(lambda w: w @ matrix @ w / 2, points)
    assert (found.lipschitz, found.smoothness, found.convexity) == pytest.approx((4.0, 4.0, 0.5))
    with pytest.raises(InputError, match="at most 4096 weights"):
        local_constants(lambda w: w.sum(), torch.zeros(1, 5000))


def test_the_formulas_are_the_printed_ones() -> None:
    k = Constants(lipschitz=3.0, smoothness=2.0, convexity=0.5)
    G2 = 0.1**2 * 0.01 / (1 - 0.01 * 2 / 2)
    C = math.sqrt(20 * G2 * 9 / 0.7)
    assert c_gd(0.1, k, rate=0.01, steps=20, fall=0.7) == pytest.approx(C)
    assert bound_gd(0.1, k, rate=0.01, steps=20, fall=0.7) == pytest.approx((0.1 + C) ** 2)
    first = 2 * 0.01 + 2 * 0.01**2 * 4 * 20 / (0.5 * (1 - 0.01)) * 0.7 / 0.3
    third = 1 / (1 - 0.1) * 1.1 / (1 - C) * (C + 3 * 20 * 0.2 * 0.01 * 1.02**19 / 0.7)
    got = bound_sgd(0.1, k, rate=0.01, steps=20, fall=0.7, above=0.3, noise=0.2)
    assert got == pytest.approx(first + third + 0.01)


def test_bounds_without_their_conditions_are_infinite() -> None:
    k = Constants(3.0, 2.0, 0.5)
    assert c_gd(0.1, k, rate=0.01, steps=5, fall=0.0) == math.inf
    assert c_gd(0.1, k, rate=1.5, steps=5, fall=1.0) == math.inf
    flat = Constants(3.0, 2.0, 0.0)
    assert bound_sgd(0.1, flat, rate=0.01, steps=5, fall=1.0, above=1.0, noise=0.0) == math.inf


def test_confidence_falls_with_the_noise() -> None:
    k = Constants(1.0, 1.0, 0.5)
    sure = [confidence(k, rate=0.01, steps=5, fall=1.0, noise=n) for n in (0.0, 0.05, 0.5, 5.0)]
    assert sure[0] == 1.0
    assert sorted(sure, reverse=True) == sure
    assert sure[-1] < 0


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    large=st.tuples(st.floats(0.5, 3), st.floats(0.5, 3)),
    small=st.lists(st.floats(0.05, 0.5), min_size=1, max_size=3),
    off=st.floats(0, 0.05),
    steps=st.integers(2, 20),
    seed=st.integers(0, 99),
)
def test_bound_8_holds_on_quadratics_where_its_conditions_hold(
    large: tuple[float, float], small: list[float], off: float, steps: int, seed: int
) -> None:
    """Up to the error of discretisation, which the paper leaves unnamed: a small rate makes it small."""
    matrix = quadratic([*large, *small])
    turn = torch.linalg.qr(
        torch.randn(len(matrix), len(matrix), generator=torch.Generator().manual_seed(seed)).double()
    ).Q
    matrix = turn @ matrix @ turn.T
    start = turn @ torch.tensor([1.0, 1.0, *[off] * len(small)], dtype=torch.float64)
    rate = 0.02
    path = descend(lambda w: matrix @ w, start, rate=rate, steps=steps)
    made = bounds_of(lambda w: w @ matrix @ w / 2, path, rate=rate)
    assume(made.hold)
    assert made.measured <= made.gd + 1e-4
    assert made.measured <= made.sgd + 1e-4


def test_a_training_in_a_plane_has_no_gap_and_its_conditions_are_told() -> None:
    matrix = quadratic([3.0, 1.0])
    path = descend(lambda w: matrix @ w, torch.tensor([1.0, 1.0], dtype=torch.float64), rate=0.01, steps=40)
    made = bounds_of(lambda w: w @ matrix @ w / 2, path, rate=0.01)
    assert made.hold
    assert made.g2 == pytest.approx(0, abs=1e-6)
    assert made.measured < 1e-3
    assert made.gd == pytest.approx(0, abs=1e-10)
    uphill = bounds_of(lambda w: -(w @ matrix @ w) / 2, path, rate=0.01)
    assert not uphill.hold
    assert not uphill.conditions["strongly convex (gamma > 0)"]
    assert not uphill.conditions["the loss falls"]


def test_noise_enters_the_second_bound_alone() -> None:
    matrix = quadratic([3.0, 1.0, 0.1])
    path = descend(lambda w: matrix @ w, torch.tensor([1.0, 1.0, 0.01], dtype=torch.float64), rate=0.01, steps=10)
    quiet, loud = (bounds_of(lambda w: w @ matrix @ w / 2, path, rate=0.01, noise=n) for n in (0.0, 0.1))
    assert quiet.gd == pytest.approx(loud.gd)
    assert loud.sgd > quiet.sgd
    assert loud.confidence < quiet.confidence == 1.0


def logistic(w: Tensor) -> Tensor:
    """Return a strongly convex loss that is no quadratic."""
    x = torch.tensor([[1.0, 2.0, 0.3], [-1.0, 0.5, 1.0], [0.2, -1.0, 2.0]], dtype=torch.float64)
    return torch.nn.functional.softplus(-(x @ w)).mean() + 0.05 * w.square().sum()


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(constant=st.floats(-5, 5), steps=st.integers(2, 20))
def test_a_constant_in_the_loss_changes_no_bound(constant: float, steps: int) -> None:
    matrix = quadratic([3.0, 1.0, 0.1])
    start = torch.tensor([1.0, 1.0, 0.01], dtype=torch.float64)
    path = descend(lambda w: matrix @ w, start, rate=0.01, steps=steps)
    plain = bounds_of(lambda w: w @ matrix @ w / 2, path, rate=0.01, lowest=0.0)
    found = bounds_of(lambda w: w @ matrix @ w / 2 + constant, path, rate=0.01)
    told = bounds_of(lambda w: w @ matrix @ w / 2 + constant, path, rate=0.01, lowest=constant)
    assert (found.gd, found.sgd) == pytest.approx((plain.gd, plain.sgd))
    assert (told.gd, told.sgd) == pytest.approx((plain.gd, plain.sgd))


@pytest.mark.slow
def test_the_minimum_is_that_of_a_long_descent() -> None:
    start = torch.tensor([3.0, -4.0, 5.0], dtype=torch.float64)
    far = descend(torch.func.grad(logistic), start, rate=0.5, steps=2000)[-1]
    assert lowest_near(logistic, start) == pytest.approx(float(logistic(far)), abs=1e-12)
    assert lowest_near(logistic, far) <= float(logistic(far))


def test_with_noise_the_constants_are_also_those_of_gradient_descent() -> None:
    slope, start = torch.func.grad(logistic), torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    straight = descend(slope, start, rate=0.1, steps=8)
    away = torch.tensor([0.3, 0.2, -0.3], dtype=torch.float64)
    path = descend(lambda w: slope(w) + away, start, rate=0.1, steps=8)
    made = bounds_of(logistic, path, rate=0.1, noise=float(away.norm()))
    alphas = torch.linspace(0, 1, 21, dtype=torch.float64)[:, None]
    points = torch.cat([way for w in (path, straight) for way in (w, w[0] + alphas * (w[-1] - w[0]))])
    assert made.constants == local_constants(logistic, points)
    assert made.g2 == pytest.approx(float(off_plane(shares_in_plane(torch.stack([slope(p) for p in points])))))
    quiet = bounds_of(logistic, path, rate=0.1)
    assert made.g2 > quiet.g2
    assert made.constants.lipschitz >= quiet.constants.lipschitz


@pytest.mark.parametrize(
    ("path", "rate", "says"),
    [
        ([[1.0, 1.0], [0.9, 0.9]], 0.0, r"rate=\.\.\.\) .*got 0\.0"),
        ([[1.0, 1.0], [0.9, 0.9]], -0.1, "got -0.1"),
        ([[1.0, 1.0], [0.9, 0.9]], math.nan, "got nan"),
        ([[1.0, 1.0]], 0.1, r"2 rows .*\(1, 2\)"),
        ([1.0, 1.0], 0.1, r"got the shape \(2,\)"),
        ([[1.0, 1.0], [math.inf, 1.0], [math.nan, 1.0]], 0.1, "NaN in row 1"),
    ],
)
def test_what_is_no_training_is_refused_in_one_line(path: list[object], rate: float, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        bounds_of(lambda w: w.square().sum(), torch.tensor(path, dtype=torch.float64), rate=rate)
    assert "\n" not in str(raised.value)
