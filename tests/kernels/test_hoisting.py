"""What is fixed is computed once, and the bits stay; what an evaluation writes into or draws is made fresh each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from leakscope.kernels.hoisting import Hoisted, bind, hoist

Flat = tuple[Tensor, ...]


def traced(f: Callable[..., Flat], *flat: Tensor) -> GraphModule:
    graph = make_fx(f)(*flat)
    assert isinstance(graph, GraphModule)
    return graph


def names(graph: GraphModule) -> list[str]:
    return [node.target.__name__.split(".")[0] for node in graph.graph.nodes if node.op == "call_function"]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def distance(x: Tensor, observed: Tensor, mask: Tensor) -> Flat:
    unit = observed * mask / (observed * mask).norm()
    return ((x * mask - unit).square().sum(), unit.sum())


def test_what_is_fixed_is_computed_once_and_the_bits_stay() -> None:
    x, y, observed, mask = numbers(0, 4, 5), numbers(1, 4, 5), numbers(2, 4, 5), (numbers(3, 4, 5) > 0).float()
    graph = traced(distance, x, observed, mask)
    made = hoist(graph, 1)
    assert isinstance(made, Hoisted)
    assert "linalg_vector_norm" in names(made.first)
    assert "linalg_vector_norm" not in names(made.rest)
    call = bind(made, (observed, mask))
    for moving in (x, y):
        want = graph(moving, observed, mask)
        assert all(map(torch.equal, call(moving), want))
        assert all(map(torch.equal, made(moving, observed, mask), want))
    observed.zero_()  # it was read at the first call
    assert torch.isfinite(call(x)[0])


def test_a_value_that_is_written_into_is_made_fresh_for_each_evaluation() -> None:
    def f(x: Tensor, fixed: Tensor) -> Flat:
        room = fixed.exp()
        room.view(-1).masked_fill_(x.view(-1) > 0, 7.0)
        return (room + fixed.cos(),)

    x, y, fixed = numbers(0, 3, 4), numbers(1, 3, 4), numbers(2, 3, 4)
    made = hoist(traced(f, x, fixed), 1)
    assert isinstance(made, Hoisted)
    assert names(made.first) == ["cos"]
    call = bind(made, (fixed,))
    for moving in (x, y, x):
        assert torch.equal(call(moving)[0], f(moving, fixed)[0])


def test_writing_of_what_is_fixed_stays_in_order() -> None:
    def f(x: Tensor, fixed: Tensor) -> Flat:
        room = torch.zeros_like(fixed)
        before = room + 1
        room.add_(fixed)
        return (x * room * before,)

    x, fixed = numbers(0, 3), numbers(1, 3)
    made = hoist(traced(f, x, fixed), 1)
    for _ in range(2):
        assert torch.equal(bind(made, (fixed,))(x)[0], f(x, fixed)[0])


def test_draws_are_not_hoisted() -> None:
    def f(x: Tensor, fixed: Tensor) -> Flat:
        return (x + torch.rand_like(fixed) + fixed.exp(),)

    made = hoist(traced(f, numbers(0, 50), numbers(1, 50)), 1)
    assert isinstance(made, Hoisted)
    assert names(made.first) == ["exp"]
    call = bind(made, (numbers(1, 50),))
    assert not torch.equal(call(numbers(0, 50))[0], call(numbers(0, 50))[0])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, fixed: ((x[:, None] * (fixed[:, None] + torch.zeros(9, 7))).sum(),),  # what would be kept is larger than what is fixed
        lambda x, fixed: (x * fixed,),  # nothing to keep
    ],
    ids=["too large", "nothing"],
)  # fmt: skip
def test_a_graph_stays_whole_where_hoisting_does_not_pay(f: Callable[..., Flat]) -> None:
    x, fixed = numbers(0, 9), numbers(1, 9)
    graph = traced(f, x, fixed)
    assert hoist(graph, 1) is graph
    assert torch.equal(bind(graph, (fixed,))(x)[0], f(x, fixed)[0])


def test_constants_of_a_graph_reach_both_parts() -> None:
    table = numbers(5, 4)

    def f(x: Tensor, fixed: Tensor) -> Flat:
        return (x * table + (fixed * table).exp(),)

    x, fixed = numbers(0, 4), numbers(1, 4)
    made = hoist(traced(f, x, fixed), 1)
    assert isinstance(made, Hoisted)
    assert torch.equal(bind(made, (fixed,))(x)[0], f(x, fixed)[0])


def adds_behind_a_view(x: Tensor, fixed: Tensor) -> Flat:
    made = fixed @ fixed[0]  # three dimensions: the product is read through a view that its schema does not show
    made += x
    return (made,)


def writes_by_name(x: Tensor, fixed: Tensor) -> Flat:
    room = fixed.exp()
    torch.add(room, x, out=room)
    return (room * fixed.cos(),)


def writes_into_a_list(x: Tensor, fixed: Tensor) -> Flat:
    rooms = [fixed.exp(), fixed.sin()]
    torch._foreach_add_(rooms, [x, 2 * x])
    return (rooms[0] * rooms[1],)


@pytest.mark.parametrize("f", [adds_behind_a_view, writes_by_name, writes_into_a_list])
def test_what_is_written_in_any_way_is_made_fresh(f: Callable[..., Flat]) -> None:
    fixed = numbers(2, 2, 3, 3)
    call = bind(hoist(traced(f, numbers(0, 2, 3, 3), fixed), 1), (fixed,))
    for seed in range(3):
        x = numbers(seed, 2, 3, 3)
        assert torch.equal(call(x)[0], f(x, fixed)[0])


def test_a_view_counts_as_the_memory_it_keeps() -> None:
    def f(x: Tensor, fixed: Tensor) -> Flat:
        large = fixed[:, None] + torch.zeros(9, 700)
        return (x * large[:, 0],)

    x, fixed = numbers(0, 9), numbers(1, 9)
    graph = traced(f, x, fixed)
    assert hoist(graph, 1) is graph
