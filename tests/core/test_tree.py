"""Named-tensor trees: the vector laws, and one map over any nesting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.tree import (
    Tree,
    add,
    count,
    dot,
    fill,
    flat_names,
    interpolate,
    lift,
    map_tensors,
    norm,
    scale,
    subtract,
    take,
    tensors,
    to,
    trials,
)


@dataclass(frozen=True, slots=True)
class Leaf:
    weight: Tensor
    note: str
    extra: Tensor | None = None


@dataclass(frozen=True)
class Checked:
    """A value whose checks cannot run on traced tensors."""

    value: Tensor

    def __post_init__(self) -> None:
        if float(self.value.sum()) < 0:
            raise ValueError("negative")


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tree(seed: int) -> Tree:
    return {"a": draw(seed, 2, 3), "b": draw(seed + 1, 4), "c": draw(seed + 2)}


def nested(length: int = 3) -> dict[str, Any]:
    return {
        "leaf": Leaf(draw(0, length, 2), "kept", draw(1, length)),
        "pair": (draw(2, length), [draw(3, length, 1, 2), None]),
        "text": "kept",
        "empty": {},
        "bare": Leaf(draw(4, length), "no extra"),
    }


def vector(a: Tree) -> Tensor:
    return torch.cat([value.flatten() for value in a.values()])


SEEDS = st.integers(0, 10_000)
NUMBERS = st.floats(-10, 10)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, other=SEEDS, factor=NUMBERS)
def test_a_tree_is_one_long_vector(seed: int, other: int, factor: float) -> None:
    a, b = tree(seed), tree(other)
    assert_close(dot(a, b), vector(a) @ vector(b))
    assert_close(norm(a), vector(a).norm())
    assert_close(vector(scale(a, factor)), factor * vector(a))
    assert_close(vector(add(a, b)), vector(a) + vector(b))
    assert_close(vector(subtract(a, b)), vector(a) - vector(b))
    assert_close(vector(interpolate(a, b, factor)), (1 - factor) * vector(a) + factor * vector(b), atol=1e-9, rtol=1e-9)
    assert count(a) == vector(a).numel()


def test_interpolate_ends_at_its_ends_and_takes_a_tensor_weight() -> None:
    a, b = tree(0), tree(7)
    assert_close(interpolate(a, b, 0.0), a)
    assert_close(interpolate(a, b, 1.0), b)
    assert_close(interpolate(a, b, torch.tensor(0.25)), interpolate(a, b, 0.25))


def test_names_pair_the_tensors_not_the_order() -> None:
    a = tree(0)
    backwards = dict(reversed(a.items()))
    assert_close(dot(a, backwards), dot(a, a))
    assert_close(subtract(a, backwards), scale(a, 0.0))


def test_inputs_are_untouched() -> None:
    a, b = tree(0), tree(5)
    before = vector(a).clone(), vector(b).clone()
    for result in (scale(a, 2.0), add(a, b), subtract(a, b), interpolate(a, b, 0.5)):
        for value in result.values():
            value.zero_()
    assert torch.equal(vector(a), before[0])
    assert torch.equal(vector(b), before[1])


def test_tensors_come_in_a_fixed_order_and_none_is_none() -> None:
    value = nested()
    found = list(tensors(value))
    expected = [
        value["leaf"].weight,
        value["leaf"].extra,
        value["pair"][0],
        value["pair"][1][0],
        value["bare"].weight,
    ]
    assert len(found) == len(expected)
    assert all(a is b for a, b in zip(found, expected, strict=True))
    assert list(tensors(None)) == []
    assert list(tensors(Leaf)) == []


def test_map_keeps_the_nesting_and_everything_that_is_not_a_tensor() -> None:
    value = nested()
    doubled = map_tensors(lambda t: 2 * t, value)
    assert [type(item) for item in doubled.values()] == [type(item) for item in value.values()]
    assert doubled["leaf"].note == "kept"
    assert doubled["text"] == "kept"
    assert doubled["pair"][1][1] is None
    assert doubled["bare"].extra is None
    assert_close(list(tensors(doubled)), [2 * t for t in tensors(value)])


def test_map_over_several_values_of_one_nesting() -> None:
    value = nested()
    summed = map_tensors(lambda a, b, c: a + b + c, value, value, value)
    assert_close(list(tensors(summed)), [3 * t for t in tensors(value)])


def test_map_laws() -> None:
    value = nested()
    assert_close(list(tensors(map_tensors(lambda t: t, value))), list(tensors(value)))
    twice = map_tensors(torch.sin, map_tensors(torch.cos, value))
    assert_close(list(tensors(twice)), list(tensors(map_tensors(lambda t: t.cos().sin(), value))))


def test_map_does_not_run_the_checks_again() -> None:
    assert_close(map_tensors(torch.neg, Checked(torch.ones(2))).value, -torch.ones(2))


def test_fill_undoes_tensors() -> None:
    value = nested()
    flat = [t + 1 for t in tensors(value)]
    filled = fill(value, flat)
    assert all(a is b for a, b in zip(tensors(filled), flat, strict=True))
    assert filled["leaf"].note == "kept"


@pytest.mark.parametrize("index", [0, slice(1, 3), torch.tensor([2, 0, 2]), torch.tensor([True, False, True])])
def test_take_indexes_every_tensor(index: Any) -> None:
    value = nested()
    assert_close(list(tensors(take(value, index))), [t[index] for t in tensors(value)])


def test_trials_is_the_shared_leading_length() -> None:
    assert trials(nested(5)) == 5
    for bad in ({"a": torch.zeros(2), "b": torch.zeros(3)}, {"a": torch.tensor(1.0)}, {}):
        with pytest.raises(ValueError, match="same trial dimension"):
            trials(bad)


def work(leaf: Leaf, pair: tuple[Tensor, Tree], power: int) -> dict[str, Any]:
    """A function of one trial that nests on both sides and closes over what is no tensor."""
    x, named = pair
    extra = leaf.extra if leaf.extra is not None else torch.zeros((), dtype=x.dtype)
    made = Leaf(leaf.weight**power + extra, leaf.note.upper(), None)
    return {"leaf": made, "all": (dot(named, named) * x.sum(), None), "power": power}


@pytest.fixture(params=["vmap", "loop"])
def path_of_lift(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "loop":
        monkeypatch.setattr("leakscope.core.tree.LARGE", 0)


@pytest.mark.usefixtures("path_of_lift")
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("extra", [True, False])
def test_lift_equals_a_loop(chunk: int | None, extra: bool) -> None:
    leaf = Leaf(draw(0, 5, 3), "n", draw(1, 5) if extra else None)
    pair = (draw(2, 5, 2, 2), {"u": draw(3, 5, 4), "v": draw(4, 5)})
    lifted = lift(work, chunk)(leaf, pair, 3)
    loop = [work(take(leaf, i), take(pair, i), 3) for i in range(5)]
    assert lifted["leaf"].note == "N"
    assert lifted["leaf"].extra is None
    assert lifted["all"][1] is None
    assert lifted["power"] == 3
    assert_close(lifted["leaf"].weight, torch.stack([one["leaf"].weight for one in loop]))
    assert_close(lifted["all"][0], torch.stack([one["all"][0] for one in loop]))


def test_lift_repeats_what_does_not_depend_on_the_trial() -> None:
    assert_close(lift(lambda x: {"x": x, "one": torch.ones(2)})(torch.zeros(3))["one"], torch.ones(3, 2))


@pytest.mark.usefixtures("path_of_lift")
def test_lift_refuses_global_randomness() -> None:
    with pytest.raises(RuntimeError, match="random"):
        lift(lambda x: x + torch.randn(2))(torch.zeros(3, 2))


def test_lift_carries_gradients() -> None:
    def cubes(u: Tensor) -> Tensor:
        return (u**3).sum()

    x = draw(0, 4, 3)
    assert_close(lift(torch.func.grad(cubes))(x), 3 * x**2)


def test_to_changes_the_dtype_of_floats_only() -> None:
    moved = to({"x": torch.zeros(2), "label": torch.zeros(2, dtype=torch.int64)}, dtype=torch.float64)
    assert moved["x"].dtype == torch.float64
    assert moved["label"].dtype == torch.int64


def test_flat_names_name_every_tensor_once() -> None:
    value = nested()
    names = flat_names(value)
    assert list(names) == ["leaf/weight", "leaf/extra", "pair/0", "pair/1/0", "bare/weight"]
    assert all(a is b for a, b in zip(names.values(), tensors(value), strict=True))
    assert next(iter(flat_names(value, "root"))) == "root/leaf/weight"
