"""Noise on the update: of the asked strength and shape, from the trial's key alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.tree import Tree, lift
from leakscope.defences import GaussianNoise, LaplaceNoise, UpdateDefence

KEY = random.key(11)
SHAPE = (64, 128)
NUMBER = math.prod(SHAPE)
BOTH = pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])


def noise_of(defence: UpdateDefence, given: Tree, key: Tensor = KEY) -> Tree:
    made = defence.protect_update(given, key)
    return {name: made[name] - given[name] for name in given}


def zeros() -> Tree:
    return {"weight": torch.zeros(40, 50), "bias": torch.zeros(50)}


def drawn_with(defence: UpdateDefence, seed: int) -> Tensor:
    return noise_of(defence, {"w": torch.zeros(SHAPE, dtype=torch.float64)}, random.key(seed))["w"].flatten()


def largest_gap(drawn: Tensor, below: Tensor) -> float:
    """Return Kolmogorov and Smirnov's distance between a sample and a distribution; `below` = F(sorted sample)."""
    steps = torch.arange(len(drawn) + 1, dtype=torch.float64) / len(drawn)
    return float(torch.maximum((below - steps[:-1]).abs(), (steps[1:] - below).abs()).max())


def laplace_below(x: Tensor, b: float) -> Tensor:
    return torch.where(x < 0, 0.5 * torch.exp(x / b), 1 - 0.5 * torch.exp(-x / b))


# bounds: five standard errors; 2.5 / sqrt(n) is passed by chance in 1 of 100,000 draws, and by a wrong shape in none


@settings(deadline=None, max_examples=15)
@given(sigma=st.floats(1e-3, 10), seed=st.integers(0, 2**40))
def test_gaussian_noise_has_the_moments_and_the_shape_of_its_distribution(sigma: float, seed: int) -> None:
    drawn = drawn_with(GaussianNoise(sigma), seed) / sigma
    assert abs(drawn.mean()) < 5 / math.sqrt(NUMBER)
    assert abs(drawn.std() - 1) < 5 / math.sqrt(2 * NUMBER)
    assert abs(drawn.pow(4).mean() - 3) < 5 * math.sqrt(96 / NUMBER)
    assert largest_gap(drawn, torch.special.ndtr(drawn.sort().values)) < 2.5 / math.sqrt(NUMBER)


@settings(deadline=None, max_examples=15)
@given(sigma=st.floats(1e-3, 10), seed=st.integers(0, 2**40))
def test_laplace_noise_has_the_moments_and_the_shape_of_its_distribution(sigma: float, seed: int) -> None:
    drawn = drawn_with(LaplaceNoise(sigma), seed) / sigma
    assert abs(drawn.mean()) < 5 / math.sqrt(NUMBER)
    assert abs(drawn.pow(2).mean() - 1) < 5 * math.sqrt(5 / NUMBER)  # fourth moment 6, so the variance of x^2 is 5
    assert abs(drawn.abs().mean() - math.sqrt(0.5)) < 5 * math.sqrt(0.5 / NUMBER)  # |x| is exponential with mean b
    assert largest_gap(drawn, laplace_below(drawn.sort().values, math.sqrt(0.5))) < 2.5 / math.sqrt(NUMBER)


@given(scale=st.floats(1e-3, 10))
@settings(deadline=None, max_examples=15)
def test_a_laplace_scale_is_the_standard_deviation_over_root_two(scale: float) -> None:
    by_scale, by_sigma = LaplaceNoise(scale=scale), LaplaceNoise(scale * math.sqrt(2))
    assert by_scale.deviation == by_sigma.deviation == by_sigma.sigma
    assert_close(by_scale.protect_update(zeros(), KEY), by_sigma.protect_update(zeros(), KEY), rtol=0, atol=0)
    drawn = drawn_with(by_scale, 1)
    assert abs(drawn.abs().mean() / scale - 1) < 5 / math.sqrt(NUMBER)


def test_laplace_noise_is_finite_at_both_ends_of_what_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (0.0, 1 - 2.0**-24):
        monkeypatch.setattr(
            random, "uniforms", lambda k, shapes, dtype, end=end: {"w": torch.full((3,), end, dtype=dtype)}
        )
        made = LaplaceNoise(scale=1.0).protect_update({"w": torch.zeros(3)}, KEY)["w"]
        assert_close(made.abs(), torch.full((3,), 24 * math.log(2)), rtol=1e-6, atol=0)
        assert bool((made < 0).all()) is (end == 0.0)


@BOTH
def test_without_sigma_the_update_stays_as_it_is(make: type) -> None:
    given = {"w": torch.linspace(-1, 1, 9)}
    assert_close(make(0.0).protect_update(given, KEY), given, rtol=0, atol=0)
    assert_close(make().protect_update(given, KEY), given, rtol=0, atol=0)


@BOTH
def test_noise_does_not_depend_on_what_it_is_added_to(make: type) -> None:
    one = make(0.3).protect_update({"w": torch.zeros(5, dtype=torch.float64)}, KEY)["w"]
    two = make(0.3).protect_update({"w": torch.ones(5, dtype=torch.float64)}, KEY)["w"]
    assert_close(two - one, torch.ones(5, dtype=torch.float64))


@BOTH
def test_twice_the_sigma_is_twice_the_noise(make: type) -> None:
    one, two = noise_of(make(0.5), zeros()), noise_of(make(1.0), zeros())
    assert_close(two, {name: 2 * value for name, value in one.items()})


@BOTH
def test_noise_of_each_tensor_counts_in_units_of_its_own_size(make: type) -> None:
    sizes = {"large": 50.0, "small": 0.01, "none": 0.0}
    given = {name: size * random.normal(random.key(5), SHAPE, torch.float64) for name, size in sizes.items()}
    made = noise_of(make(0.2, each=True), given)
    assert not bool(made["none"].any())
    for name in ("large", "small"):
        level = made[name].square().mean().sqrt() / given[name].square().mean().sqrt()
        assert abs(level / 0.2 - 1) < 5 * math.sqrt(5 / NUMBER)


@BOTH
def test_noise_of_each_tensor_is_that_of_all_where_its_size_is_one(make: type) -> None:
    given = {"w": torch.ones(7, dtype=torch.float64), "b": -torch.ones(3, dtype=torch.float64)}
    assert_close(make(0.3, each=True).protect_update(given, KEY), make(0.3).protect_update(given, KEY), rtol=0, atol=0)


@BOTH
def test_noise_of_each_tensor_has_a_strength_for_each_trial(make: type) -> None:
    given, keys = {"w": torch.arange(1.0, 9.0).reshape(2, 4)}, random.key([3, 4])
    strengths = torch.tensor([0.0, 0.5])
    together = lift(lambda d, update, key: d.protect_update(update, key))(make(strengths, each=True), given, keys)
    for trial, strength in enumerate(strengths.tolist()):
        alone = make(strength, each=True).protect_update({"w": given["w"][trial]}, keys[trial])
        assert_close(together["w"][trial], alone["w"])


def test_gaussian_and_laplace_noise_from_one_key_are_drawn_apart() -> None:
    pair = torch.stack([noise_of(make(1.0), zeros())["weight"].flatten() for make in (GaussianNoise, LaplaceNoise)])
    assert abs(torch.corrcoef(pair)[0, 1]) < 5 / math.sqrt(pair.shape[1])


@BOTH
def test_another_key_draws_independently(make: type) -> None:
    pair = torch.stack([noise_of(make(1.0), zeros(), random.key(s))["weight"].flatten() for s in (11, 12)])
    assert abs(torch.corrcoef(pair)[0, 1]) < 5 / math.sqrt(pair.shape[1])


@BOTH
def test_whole_numbers_are_strengths_too(make: type) -> None:
    assert_close(make(1).protect_update(zeros(), KEY), make(1.0).protect_update(zeros(), KEY), rtol=0, atol=0)
