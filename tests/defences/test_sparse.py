"""Sending some coordinates: how many, which ones, and that what is not sent is not lost."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.tree import Tree, add, lift, take
from leakscope.defences import DeepCompression, RandomMask, Sparsify

KEY = random.key(3)
PERCENT = st.integers(0, 99)


@st.composite
def updates(draw: st.DrawFn, ties: bool = True) -> Tree:
    """Return small trees; with ties, of a few whole numbers, so that many magnitudes are equal."""
    shapes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    made = {}
    for i, shape in enumerate(shapes):
        number = torch.randn(shape, generator=generator, dtype=torch.float64)
        made[f"t{i}"] = (2 * number).round() if ties else number
    return made


def number_sent(percent_dropped: int, size: int) -> int:
    """Return the nearest whole number of the share sent, exactly, halves to the even one, at least one."""
    return max(1, round(Fraction(100 - percent_dropped, 100) * size))


def slow_sparsify(update: Tree, percent: int) -> Tree:
    """Return the update with all but the first of its coordinates, sorted by magnitude and then by place, at zero."""
    flat = [float(x) for value in update.values() for x in value.flatten()]
    order = sorted(range(len(flat)), key=lambda i: (-abs(flat[i]), i))
    kept = set(order[: number_sent(percent, len(flat))])
    left = iter([x if i in kept else 0.0 for i, x in enumerate(flat)])
    return {
        name: torch.tensor([next(left) for _ in range(value.numel())], dtype=value.dtype).reshape(value.shape)
        for name, value in update.items()
    }


# -- Sparsify


@settings(deadline=None, max_examples=150)
@given(update=updates(), percent=PERCENT)
def test_sparsify_sends_the_largest_and_of_equals_the_earlier(update: Tree, percent: int) -> None:
    expected = slow_sparsify(update, percent)
    drop = percent / 100
    assert_close(Sparsify(drop).protect_update(update, KEY), expected, rtol=0, atol=0)
    assert_close(Sparsify(share=(100 - percent) / 100).protect_update(update, KEY), expected, rtol=0, atol=0)
    one = {name: value[None] for name, value in update.items()}
    for strength in (torch.tensor([drop]), torch.tensor([drop], dtype=torch.float64)):
        many = lift(lambda d, u: d.protect_update(u, KEY))(Sparsify(strength), one)
        assert_close(take(many, 0), expected, rtol=0, atol=0)


@settings(deadline=None, max_examples=60)
@given(update=updates(), percent=PERCENT)
def test_sparsify_of_each_tensor_is_that_of_every_tensor_alone(update: Tree, percent: int) -> None:
    made = Sparsify(percent / 100, each=True).protect_update(update, KEY)
    for name, value in update.items():
        assert_close(made[name], slow_sparsify({name: value}, percent)[name], rtol=0, atol=0)


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 5000), percent=PERCENT)
@example(size=15, percent=90)
def test_the_number_sent_is_the_nearest_whole_number_however_the_share_is_said(size: int, percent: int) -> None:
    """Halves are where rounding of 1 - drop would show: 15 coordinates at 0.9 are 1.5."""
    update = {"w": torch.arange(1.0, size + 1)}
    for defence in (Sparsify(percent / 100), Sparsify(share=(100 - percent) / 100)):
        assert int((defence.protect_update(update, KEY)["w"] != 0).sum()) == number_sent(percent, size)
    batch = {"w": update["w"].expand(2, size)}
    many = lift(lambda d, u: d.protect_update(u, KEY))(Sparsify(torch.tensor([percent / 100, 0.5])), batch)["w"]
    assert (many != 0).sum(1).tolist() == [number_sent(percent, size), number_sent(50, size)]


@pytest.mark.parametrize(("drop", "number"), [(0.9, 2), (0.7, 4), (0.5, 8), (0.3, 10), (0.1, 14), (0.9999, 1)])
def test_halves_go_to_the_even_number(drop: float, number: int) -> None:
    made = Sparsify(drop).protect_update({"w": torch.arange(1.0, 16.0)}, KEY)["w"]
    assert made.nonzero().flatten().tolist() == list(range(15 - number, 15))


@settings(deadline=None, max_examples=30)
@given(update=updates(ties=False))
def test_dropping_nothing_changes_nothing(update: Tree) -> None:
    for defence in (Sparsify(), Sparsify(0.0), Sparsify(share=1.0), Sparsify(each=True)):
        assert_close(defence.protect_update(update, KEY), update, rtol=0, atol=0)


def test_all_equal_sends_the_first_ones_in_the_updates_order() -> None:
    update = {"b": torch.ones(2, 2), "a": -torch.ones(4)}
    made = Sparsify(0.25).protect_update(update, KEY)
    assert made["b"].tolist() == [[1, 1], [1, 1]]
    assert made["a"].tolist() == [-1, -1, 0, 0]


# -- DeepCompression


def gradients(seed: int, rounds: int, shapes: dict[str, tuple[int, ...]] | None = None) -> list[Tree]:
    generator = torch.Generator().manual_seed(seed)
    shapes = shapes or {"w": (3, 5), "b": (4,), "t": ()}
    return [
        {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()} for _ in range(rounds)
    ]


def total(trees: list[Tree]) -> Tree:
    return {name: torch.stack([tree[name] for tree in trees]).sum(0) for name in trees[0]}


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**20), rounds=st.integers(1, 25), percent=PERCENT)
def test_what_was_sent_and_what_is_left_are_all_there_was(seed: int, rounds: int, percent: int) -> None:
    given_, defence = gradients(seed, rounds), DeepCompression(percent / 100)
    state, sent = defence.begin(given_[0]), []
    for gradient in given_:
        made, state = defence.protect_and_remember(gradient, state, KEY)
        sent.append(made)
        assert sum(int((value != 0).sum()) for value in made.values()) == number_sent(percent, 20)
    left = {name: state[f"v.{name}"] for name in given_[0]}
    assert_close(add(total(sent), left), total(given_), rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**20), percent=PERCENT, momentum=st.floats(0, 0.99))
def test_momentum_is_corrected_and_masked_as_in_the_paper(seed: int, percent: int, momentum: float) -> None:
    defence, given_ = DeepCompression(percent / 100, momentum=momentum), gradients(seed, 6)
    state = defence.begin(given_[0])
    u, v = [0.0] * 20, [0.0] * 20
    for gradient in given_:
        g = [float(x) for value in gradient.values() for x in value.flatten()]
        u = [momentum * a + b for a, b in zip(u, g, strict=True)]
        v = [a + b for a, b in zip(v, u, strict=True)]
        kept = set(sorted(range(20), key=lambda i: -abs(v[i]))[: number_sent(percent, 20)])
        made, state = defence.protect_and_remember(gradient, state, KEY)
        flat = torch.cat([value.flatten() for value in made.values()])
        expected = torch.tensor([x if i in kept else 0.0 for i, x in enumerate(v)], dtype=torch.float64)
        assert_close(flat, expected, rtol=1e-10, atol=1e-12)
        u, v = ([0.0 if i in kept else x for i, x in enumerate(w)] for w in (u, v))
    for part, expected_ in (("u", u), ("v", v)):
        flat = torch.cat([state[f"{part}.{name}"].flatten() for name in given_[0]])
        assert_close(flat, torch.tensor(expected_, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_state_goes_in_and_comes_out_with_the_same_names_shapes_and_dtypes(dtype: torch.dtype) -> None:
    given_ = {n: v.to(dtype) for n, v in gradients(0, 1)[0].items()}
    defence = DeepCompression(0.5, momentum=0.9)
    begun = defence.begin(given_)
    assert set(begun) == {f"{part}.{name}" for part in "uv" for name in given_}
    assert all(not value.any() for value in begun.values())
    kept = {name: value.clone() for name, value in begun.items()}
    _, after = defence.protect_and_remember(given_, begun, KEY)
    assert [(n, v.shape, v.dtype) for n, v in after.items()] == [(n, v.shape, v.dtype) for n, v in begun.items()]
    assert_close(begun, kept, rtol=0, atol=0)
    assert any(value.any() for value in after.values())


def test_the_first_round_is_a_sparsified_update_and_a_coordinate_waits_until_it_is_large() -> None:
    update, defence = {"w": torch.tensor([3.0, 1.1, 0.5])}, DeepCompression(share=0.3)
    state, sent = defence.begin(update), []
    for _ in range(4):
        made, state = defence.protect_and_remember(update, state, KEY)
        sent.append(made["w"].tolist())
    assert_close(torch.tensor(sent[0]), Sparsify(share=0.3).protect_update(update, KEY)["w"])
    assert_close(torch.tensor(sent), torch.tensor([[3.0, 0, 0], [3.0, 0, 0], [0, 3.3, 0], [6.0, 0, 0]]))


def test_without_a_share_it_drops_99_percent() -> None:
    update = {"w": torch.arange(1.0, 1001.0)}
    made, _ = (d := DeepCompression()).protect_and_remember(update, d.begin(update), KEY)
    assert int((made["w"] != 0).sum()) == 10


# -- RandomMask


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**40), share=st.floats(0.02, 1.0))
def test_a_random_mask_sends_its_share_and_leaves_what_it_sends_alone(seed: int, share: float) -> None:
    update = {"w": torch.full((80, 100), 2.5), "b": torch.full((192,), -1.0)}
    made = RandomMask(share).protect_update(update, random.key(seed))
    sent = {name: value != 0 for name, value in made.items()}
    for name, value in update.items():
        assert_close(made[name][sent[name]], value[sent[name]], rtol=0, atol=0)
    number = sum(int(value.sum()) for value in sent.values())
    # Bernstein's bound with a chance of 1e-9: close to share 1 the few that are left out are not normally distributed
    assert abs(number - 8192 * share) <= math.sqrt(43 * 8192 * share * (1 - share)) + 15


def test_a_random_mask_is_drawn_anew_from_each_key() -> None:
    update = {"w": torch.ones(8192)}
    masks = [RandomMask(0.3).protect_update(update, random.fold(KEY, i))["w"] for i in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both = float((masks[one] * masks[other]).mean())
        assert abs(both - 0.09) < 5 * math.sqrt(0.09 * 0.91 / 8192)  # independent


def test_which_coordinates_a_mask_sends_does_not_depend_on_their_values() -> None:
    values: list[Tensor] = [torch.ones(500), torch.linspace(1, 2, 500)]
    one, other = (RandomMask(0.5).protect_update({"w": value}, KEY)["w"] != 0 for value in values)
    assert torch.equal(one, other)
