"""Sending less of each coordinate: signs, a few bits, a low-rank sketch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.tree import Tree, lift
from leakscope.defences import LowRank, Quantise, Sign

KEY = random.key(5)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@st.composite
def updates(draw_: st.DrawFn) -> Tree:
    seed, size = draw_(st.integers(0, 2**20)), 10.0 ** draw_(st.integers(-20, 20))
    return {
        "conv": size * draw(seed, 4, 3, 2, 2),
        "dense": draw(seed + 1, 5, 6),
        "bias": draw(seed + 2, 5),
        "t": draw(seed + 3),
    }


# -- Sign


def test_a_sign_is_minus_one_zero_or_one() -> None:
    made = Sign().protect_update({"w": torch.tensor([-3.0, -1e-30, 0.0, 1e-30, 7.0])}, KEY)["w"]
    assert made.tolist() == [-1, -1, 0, 1, 1]


@settings(deadline=None, max_examples=20)
@given(update=updates(), factor=st.floats(1e-3, 1e3))
def test_signs_are_blind_to_scale_and_stay_when_taken_again(update: Tree, factor: float) -> None:
    made = Sign().protect_update(update, KEY)
    scaled = {name: factor * value for name, value in update.items()}
    assert_close(Sign().protect_update(scaled, KEY), made, rtol=0, atol=0)
    assert_close(Sign().protect_update(made, KEY), made, rtol=0, atol=0)


# -- Quantise


def levels_of(value: Tensor, bits: int) -> Tensor:
    """Return the levels written out: evenly spaced over [-m, m], 2^bits - 1 of them, three for one bit."""
    m = float(value.abs().max())
    return torch.linspace(-m, m, max(2**bits - 1, 3), dtype=value.dtype)


BITS = st.integers(1, 10)


@settings(deadline=None, max_examples=60)
@given(update=updates(), bits=BITS, stochastic=st.booleans(), seed=st.integers(0, 2**30))
def test_every_coordinate_is_a_level_next_to_it(update: Tree, bits: int, stochastic: bool, seed: int) -> None:
    made = Quantise(bits, stochastic).protect_update(update, random.key(seed))
    for name, value in update.items():
        levels, m = levels_of(value, bits), float(value.abs().max())
        step = 2 * m / (len(levels) - 1)
        to_a_level = (made[name].flatten()[:, None] - levels).abs().amin(1)
        assert bool((to_a_level <= 1e-12 * m).all())
        farthest = step if stochastic else step / 2
        assert bool(((made[name] - value).abs() <= farthest * (1 + 1e-9)).all())
        assert float(made[name].abs().max()) <= m


@settings(deadline=None, max_examples=40)
@given(update=updates(), bits=BITS)
def test_nearest_rounding_done_again_changes_no_bit(update: Tree, bits: int) -> None:
    defence = Quantise(bits, stochastic=False)
    once = defence.protect_update(update, KEY)
    assert_close(defence.protect_update(once, KEY), once, rtol=0, atol=0)
    for name, value in update.items():
        assert once[name].abs().max() == value.abs().max()


def test_halves_go_to_the_even_level() -> None:
    value = torch.tensor([3.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5])  # three bits: -3 .. 3
    made = Quantise(3, stochastic=False).protect_update({"w": value}, KEY)["w"]
    assert_close(made, torch.tensor([3.0, 0, 2, 2, 0, -2, -2]))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_random_rounding_is_unbiased_and_goes_up_in_proportion(bits: int) -> None:
    number, value = 4000, draw(1, 30)
    keys = random.fold(random.key([7] * number), torch.arange(number))
    made = lift(lambda k: Quantise(bits).protect_update({"w": value}, k))(keys)["w"]
    step = 2 * float(value.abs().max()) / (max(2**bits - 1, 3) - 1)
    level = value / step
    up = level - level.floor()
    error = step * (up * (1 - up)).sqrt() / math.sqrt(number)
    assert bool(((made.mean(0) - value).abs() <= 5 * error + 1e-9).all())
    assert_close(made.std(0), step * (up * (1 - up)).sqrt(), rtol=0.2, atol=0.05 * step)


@pytest.mark.parametrize("stochastic", [True, False])
def test_one_bit_keeps_zero_and_has_three_values(stochastic: bool) -> None:
    value = torch.cat([draw(2, 500, dtype=torch.float32), torch.zeros(20)])
    made = Quantise(1, stochastic).protect_update({"w": value}, KEY)["w"]
    m = float(value.abs().max())
    assert set(made.abs().tolist()) == {0.0, m}
    assert not made[500:].any()


def test_more_bits_are_nearer() -> None:
    value = {"w": draw(3, 400)}
    errors = [
        float((Quantise(bits, stochastic=False).protect_update(value, KEY)["w"] - value["w"]).abs().max())
        for bits in range(2, 16)
    ]
    assert all(later < 0.7 * earlier for earlier, later in itertools.pairwise(errors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_most_bits_are_within_single_precision(dtype: torch.dtype) -> None:
    value = {"w": draw(4, 100, dtype=dtype)}
    for stochastic in (True, False):
        assert_close(Quantise(24, stochastic).protect_update(value, KEY), value, rtol=0, atol=1e-6)


# -- LowRank


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**20), rows=st.integers(1, 7), columns=st.integers(1, 7), rank=st.integers(1, 8))
def test_low_rank_is_the_best_approximation_of_its_rank(seed: int, rows: int, columns: int, rank: int) -> None:
    value = draw(seed, rows, columns)
    made = LowRank(rank).protect_update({"w": value}, KEY)["w"]
    u, s, v = np.linalg.svd(value.numpy(), full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ v[:rank]
    assert_close(made.numpy(), best, rtol=1e-9, atol=1e-9)
    assert np.linalg.matrix_rank(made.numpy(), tol=1e-9) <= rank
    assert_close(float((made - value).norm()), float(np.sqrt((s[rank:] ** 2).sum())), rtol=1e-7, atol=1e-9)


def test_a_convolution_is_read_as_filters_by_the_rest() -> None:
    value = draw(1, 4, 3, 2, 2)
    made = LowRank(2).protect_update({"conv": value}, KEY)["conv"]
    flat = LowRank(2).protect_update({"w": value.reshape(4, 12)}, KEY)["w"]
    assert_close(made, flat.reshape(4, 3, 2, 2))
    assert torch.linalg.matrix_rank(made.reshape(4, 12), atol=1e-9) == 2


def test_vectors_and_numbers_and_matrices_of_that_rank_go_whole() -> None:
    update = {"bias": draw(1, 9), "t": draw(2), "thin": draw(3, 2, 9)}
    assert_close(LowRank(2).protect_update(update, KEY), update, rtol=0, atol=0)
    outer = torch.outer(draw(4, 6), draw(5, 7))
    assert_close(LowRank(1).protect_update({"w": outer}, KEY)["w"], outer)
