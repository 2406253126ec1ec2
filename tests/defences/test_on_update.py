"""Defences on the update: noise of the asked strength, from the trial's key alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, lift, take
from leakscope.defences import DEFENCES, GaussianNoise

KEY = random.key(11)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def update(*leading: int, seed: int = 0) -> Tree:
    return {"weight": draw(seed, *leading, 40, 50), "bias": draw(seed + 1, *leading, 50)}


def noise_of(sigma: float | Tensor, given: Tree, key: Tensor = KEY) -> Tree:
    made = GaussianNoise(sigma).protect_update(given, key)
    return {name: made[name] - given[name] for name in given}


@settings(deadline=None, max_examples=15)
@given(sigma=st.floats(1e-3, 10), seed=st.integers(0, 2**40))
def test_noise_has_mean_zero_and_the_asked_standard_deviation(sigma: float, seed: int) -> None:
    drawn = noise_of(sigma, {"w": torch.zeros(64, 128, dtype=torch.float64)}, random.key(seed))["w"] / sigma
    number = drawn.numel()
    assert abs(drawn.mean()) < 5 / math.sqrt(number)
    assert abs(drawn.std() - 1) < 5 / math.sqrt(2 * number)
    assert abs(drawn.pow(4).mean() - 3) < 5 * math.sqrt(96 / number)  # the fourth moment of a normal


def test_without_sigma_the_update_stays_as_it_is() -> None:
    assert_close(GaussianNoise(0.0).protect_update(update(), KEY), update(), rtol=0, atol=0)
    assert_close(GaussianNoise().protect_update(update(), KEY), update(), rtol=0, atol=0)


def test_noise_does_not_depend_on_what_it_is_added_to() -> None:
    one = GaussianNoise(0.3).protect_update({"w": torch.zeros(5, dtype=torch.float64)}, KEY)["w"]
    two = GaussianNoise(0.3).protect_update({"w": torch.ones(5, dtype=torch.float64)}, KEY)["w"]
    assert_close(two - one, torch.ones(5, dtype=torch.float64))


def test_twice_the_sigma_is_twice_the_noise() -> None:
    given = {name: torch.zeros_like(value) for name, value in update().items()}
    one, two = noise_of(0.5, given), noise_of(1.0, given)
    assert_close(two, {name: 2 * value for name, value in one.items()})


def test_tensors_of_the_same_shape_get_noise_of_their_own() -> None:
    drawn = noise_of(1.0, {"a": torch.zeros(100), "b": torch.zeros(100)})
    assert abs(torch.corrcoef(torch.stack([drawn["a"], drawn["b"]]))[0, 1]) < 0.4


def test_the_same_key_gives_the_same_noise_and_another_key_another() -> None:
    assert_close(noise_of(1.0, update()), noise_of(1.0, update()), rtol=0, atol=0)
    other = noise_of(1.0, update(), random.key(12))
    assert abs(torch.corrcoef(torch.stack([noise_of(1.0, update())["bias"], other["bias"]]))[0, 1]) < 0.6
    assert not torch.equal(noise_of(1.0, update())["bias"], other["bias"])


def test_a_sigma_for_each_trial_equals_separate_runs() -> None:
    given, keys = update(4), random.key([1, 2, 3, 4])
    sigma = torch.tensor([0.0, 0.1, 1.0, 5.0])
    many = lift(lambda d, u, k: d.protect_update(u, k))(GaussianNoise(sigma), given, keys)
    for i in range(4):
        alone = GaussianNoise(float(sigma[i])).protect_update(take(given, i), keys[i])
        assert_close(take(many, i), alone, rtol=1e-6, atol=1e-7)
    assert_close(take(many, 0), take(given, 0), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_update_keeps_its_dtype_whatever_sigma_is_given_in(dtype: torch.dtype) -> None:
    given = {"w": torch.zeros(3, 4, dtype=dtype)}
    for sigma in (
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        torch.tensor([1, 2, 3]),
    ):
        made = lift(lambda d, u, k: d.protect_update(u, k))(GaussianNoise(sigma), given, random.key([1, 2, 3]))
        assert made["w"].dtype == dtype


@pytest.mark.parametrize("sigma", [-0.1, float("nan"), torch.tensor([0.1, -0.1]), float("inf")])
def test_a_sigma_below_zero_or_not_finite_is_refused(sigma: float | Tensor) -> None:
    with pytest.raises(InputError, match=r"GaussianNoise\.sigma"):
        GaussianNoise(sigma)


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_every_defence_keeps_names_shapes_and_dtypes_and_leaves_its_input_alone(name: str) -> None:
    given, kept = update(), update()
    made = DEFENCES[name]().protect_update(given, KEY)
    assert {n: (v.shape, v.dtype) for n, v in made.items()} == {n: (v.shape, v.dtype) for n, v in given.items()}
    assert_close(given, kept, rtol=0, atol=0)
