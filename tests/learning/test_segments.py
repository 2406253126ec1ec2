"""Recomputing a function for its gradient changes nothing but the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.tree import lift
from leakscope.kernels.memory import peak_bytes
from leakscope.learning.segments import recompute


@dataclass(frozen=True)
class Pair:
    value: Tensor
    note: str


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nested(tree: dict[str, Tensor], pair: Pair, index: Tensor, power: int) -> dict[str, Any]:
    """Return something that uses every argument: floats, whole numbers, and what is no tensor."""
    a = tree["a"].index_select(0, index).sin() * tree["b"]
    return {"out": Pair(a**power, pair.note), "list": [(a * pair.value).sum()]}


def total(result: dict[str, Any]) -> Tensor:
    return result["out"].value.square().sum() + 3 * result["list"][0]


ARGUMENTS = ({"a": draw(0, 4, 3), "b": draw(1, 2, 3)}, Pair(draw(2, 2, 3), "kept"), torch.tensor([2, 0]), 2)


def kept(a: Tensor, b: Tensor, v: Tensor, again: bool) -> Tensor:
    arguments = ({"a": a, "b": b}, Pair(v, "kept"), ARGUMENTS[2], 2)
    return total(recompute(nested, *arguments) if again else nested(*arguments))


FLOATS = (ARGUMENTS[0]["a"], ARGUMENTS[0]["b"], ARGUMENTS[1].value)


def test_the_value_and_its_nesting_are_the_functions_own() -> None:
    ours, plain = recompute(nested, *ARGUMENTS), nested(*ARGUMENTS)
    assert ours["out"].note == "kept"
    assert_close((ours["out"].value, ours["list"][0]), (plain["out"].value, plain["list"][0]), rtol=0, atol=0)


def test_functional_gradients_in_every_argument_are_the_same() -> None:
    ours, plain = (torch.func.grad(kept, argnums=(0, 1, 2))(*FLOATS, again) for again in (True, False))
    assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_backward_fills_the_same_gradients() -> None:
    found = []
    for again in (True, False):
        leaves = [value.clone().requires_grad_() for value in FLOATS]
        kept(*leaves, again).backward()
        found.append([leaf.grad for leaf in leaves])
    assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_under_vmap_every_trial_has_its_own_floats_and_its_own_whole_numbers() -> None:
    a, b, v = draw(3, 5, 4, 3), draw(4, 5, 2, 3), draw(5, 5, 2, 3)
    index = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i))[:2] for i in range(5)])

    def gradient(again: bool) -> Any:
        def value(a: Tensor, b: Tensor, v: Tensor, index: Tensor) -> Tensor:
            arguments = ({"a": a, "b": b}, Pair(v, ""), index, 2)
            return total(recompute(nested, *arguments) if again else nested(*arguments))

        return lift(torch.func.grad(value, argnums=(0, 1, 2)))(a, b, v, index)

    assert_close(gradient(True), gradient(False), rtol=1e-12, atol=1e-12)


def test_a_gradient_taken_inside_survives() -> None:
    """Local training takes a gradient in every step; recomputing must differentiate through it."""

    def inner(w: Tensor, x: Tensor) -> Tensor:
        return w - 0.1 * torch.func.grad(lambda w: (w * x).sin().sum())(w)

    def value(x: Tensor, again: bool) -> Tensor:
        w = torch.ones(3, dtype=torch.float64)
        for _ in range(3):
            w = recompute(inner, w, x) if again else inner(w, x)
        return w.square().sum()

    x = draw(6, 3)
    assert_close(torch.func.grad(value)(x, True), torch.func.grad(value)(x, False), rtol=1e-12, atol=1e-12)
    xs = draw(7, 4, 3)
    ours = lift(torch.func.grad(lambda x: value(x, True)))(xs)
    assert_close(ours, torch.stack([torch.func.grad(value)(x, False) for x in xs]), rtol=1e-12, atol=1e-12)


def test_the_function_runs_again_for_its_gradient_and_only_then() -> None:
    runs = []

    def f(x: Tensor) -> Tensor:
        runs.append(1)
        return x.square().sum()

    recompute(f, draw(0, 2))
    assert len(runs) == 1
    assert_close(torch.func.grad(lambda x: recompute(f, x))(draw(0, 2)), 2 * draw(0, 2))
    assert len(runs) == 3


@pytest.mark.parametrize("lifted", [False, True])
def test_whole_number_results_pass_through(lifted: bool) -> None:
    """Buffers such as batch norm's counter are whole numbers that come out as they went in."""

    def f(x: Tensor, n: Tensor) -> dict[str, Tensor]:
        return {"x": x.square(), "n": n + 1}

    def value(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        made = recompute(f, x, n)
        return made["x"].sum(), made["n"]

    x, n = draw(0, 3, 2), torch.tensor([4, 5, 6])
    run = torch.func.grad(value, has_aux=True)
    gradient, counted = lift(run)(x, n) if lifted else run(x[0], n[0])
    assert_close(gradient, 2 * x if lifted else 2 * x[0])
    assert torch.equal(counted, n + 1 if lifted else n[0] + 1)


def test_only_the_ends_of_segments_are_kept() -> None:
    """Ten segments of ten steps: without recomputation a hundred results are alive at once, with it about twenty."""

    def long(x: Tensor) -> Tensor:
        for _ in range(10):
            x = torch.tanh(x)
        return x

    def total(x: Tensor, again: bool) -> Tensor:
        for _ in range(10):
            x = recompute(long, x) if again else long(x)
        return x.sum()

    x = draw(0, 1, 1000)

    def peak(lifted: bool, again: bool) -> float:
        slope = torch.func.grad(lambda x: total(x, again))
        return peak_bytes(lambda: (lift(slope) if lifted else slope)(x)) / (8 * x.numel())

    for lifted in (False, True):
        assert peak(lifted, again=False) > 100
        assert peak(lifted, again=True) < 45
