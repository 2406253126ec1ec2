"""Policies and the transformation of a client: notation, draws, order, bad input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import lift
from leakscope.data import load
from leakscope.defences.on_data import Policy, Transform, apply, parse_policies, picture_keys
from leakscope.defences.on_data.applying import to_bytes

indices = st.lists(st.integers(0, 49), min_size=1, max_size=3).map(tuple)


def pictures(number: int = 12) -> Tensor:
    return load("fashion_mnist").pictures("test", range(number))


@given(st.lists(indices, max_size=4))
def test_what_is_written_is_read_again(many: list[tuple[int, ...]]) -> None:
    policies = tuple(Policy(each) for each in many)
    assert parse_policies("+".join(map(str, policies)) or "none") == policies


def test_a_single_index_may_be_a_number() -> None:
    assert parse_policies(3) == (Policy((3,)),)
    assert Transform(policy=3).policies == Transform(policy="3").policies


@pytest.mark.parametrize("text", ["", "3-", "-3", "3--1", "a-b", "3,1,7", "3-1-7+", "3-1-7 43", "none+3", "1.5", "٣"])
def test_a_malformed_policy_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(InputError, match=r"Transform\.policy must"):
        Transform(policy=text)


def test_too_long_a_policy_and_an_index_outside_the_table_are_refused() -> None:
    with pytest.raises(InputError, match="got 4 in '1-2-3-4'"):
        Transform(policy="1-2-3-4")
    with pytest.raises(InputError, match=r"0\.\.49, got 50"):
        Transform(policy="3-50")


@pytest.mark.parametrize("crop", [-1, 1.5, True])
def test_a_crop_that_is_no_number_of_pixels_is_refused(crop: object) -> None:
    with pytest.raises(InputError, match=r"Transform\.crop .*whole number"):
        Transform(crop=crop)  # type: ignore[arg-type]


def test_none_changes_nothing() -> None:
    x = torch.rand(3, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lift(Transform().protect_data)(x, random.key([1, 2, 3])), x)


def test_a_policy_is_its_operations_one_after_the_other_for_each_picture() -> None:
    x = to_bytes(pictures())
    how = Transform(policy="3-1-7")
    draws = how.draw(random.key(list(range(12))))
    made = how.change(x, draws)
    for i in range(12):
        one = x[i : i + 1]
        for number, op in enumerate(how.policies[0].operations):
            one = apply(one, op, draws.signs[i : i + 1, number])
        assert torch.equal(made[i], one[0])
    assert len({tuple(row) for row in draws.signs.tolist()}) > 3, "every picture draws its own signs"


def test_a_hybrid_draws_one_policy_a_picture() -> None:
    x = to_bytes(pictures(40))
    hybrid, first, second = Transform("3-1-7+43-18-18"), Transform("3-1-7"), Transform("43-18-18")
    draws = hybrid.draw(random.key(list(range(40))))
    made = hybrid.change(x, draws)
    alone = [how.change(x, how.draw(random.key(list(range(40))))) for how in (first, second)]
    for i in range(40):
        assert torch.equal(made[i], alone[int(draws.choice[i])][i])
    assert 5 < int(draws.choice.sum()) < 35


def test_draws_depend_on_the_pictures_key_alone() -> None:
    how = Transform("3-1-7+43-18-18", crop=2, flip=True)
    x = torch.stack([pictures(4), pictures(4)])
    made = lift(how.protect_data)(x, random.key([5, 6]))
    assert torch.equal(made, lift(how.protect_data)(x, random.key([5, 6])))
    assert torch.equal(made[1], how.protect_data(x[1], random.key(6)))
    assert torch.equal(made[:, :2], lift(how.protect_data)(x[:, :2], random.key([5, 6])))
    assert not torch.equal(made[0], made[1])


def test_bytes_and_numbers_take_the_same_way() -> None:
    how, keys = Transform("12-10-31", crop=4, flip=True), picture_keys(random.key(0), 12)
    x = pictures()
    made = how.change(x, how.draw(keys))
    assert torch.equal(to_bytes(made), how.change(to_bytes(x), how.draw(keys)))
    assert made.dtype == x.dtype


def test_crop_is_a_window_of_the_padded_picture_and_flip_mirrors_it() -> None:
    x = to_bytes(pictures(30))
    how = Transform(crop=4, flip=True)
    draws = how.draw(random.key(list(range(30))))
    made = how.change(x, draws)
    wide = torch.nn.functional.pad(x, (4, 4, 4, 4))
    for i in range(30):
        left, top = draws.corner[i].tolist()
        window = wide[i, :, top : top + 28, left : left + 28]
        assert torch.equal(made[i], window.flip(-1) if draws.flip[i] else window)
    assert draws.corner.min() == 0
    assert draws.corner.max() == 8
    assert 5 < int(draws.flip.sum()) < 25


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    Transform("3-1-7", crop=4, flip=True).protect_data(pictures(2), random.key(0))
    assert torch.equal(before, torch.get_rng_state())


def test_rows_of_a_table_are_refused() -> None:
    with pytest.raises(InputError, match="1 or 3 channels"):
        Transform("3").protect_data(torch.zeros(3, 30), random.key(0))


def test_what_an_attacker_is_told_is_plain_data_without_draws() -> None:
    assert Transform("3-0").facts() == ((("translate_x", 150 / 331 / 9 * 9), ("invert", 0.0)),)
    assert Transform().facts() == ()


@pytest.mark.parametrize("index", range(50))
def test_every_operation_works_for_many_trials_at_once(index: int) -> None:
    x = torch.rand(3, 2, 3, 9, 8, generator=torch.Generator().manual_seed(index))
    how, keys = Transform(index, crop=1, flip=True), random.key([7, 8, 9])
    made = lift(how.protect_data)(x, keys)
    for i in range(3):
        assert torch.equal(made[i], how.protect_data(x[i], keys[i]))
