"""The operations of one run are those that `make_fx` traces, with the same bits; what depends on values is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from leakscope.kernels.graph_cache import Flat, flat_graph
from leakscope.kernels.operations import NotRecordedError, call_functions, operations_of

torch.set_num_threads(1)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


NET = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(27, 4))
SHAPES = [tuple(p.shape) for p in NET.parameters()]


def twice(x: Tensor, *weights: Tensor) -> Flat:
    """Return the gradient of a norm of a gradient: double backward, in-place sums and fresh zeros included."""
    x = x.detach().requires_grad_()
    point = {name: w.detach().requires_grad_() for (name, _), w in zip(NET.named_parameters(), weights, strict=True)}
    with torch.enable_grad():
        out = torch.func.functional_call(NET, point, (x,))
        slopes = torch.autograd.grad(out.square().mean(), list(point.values()), create_graph=True)
        length = torch.stack([g.square().sum() for g in slopes]).sum()
        (slope,) = torch.autograd.grad(length, x)
    zeros = torch.zeros_like(slope)
    zeros[..., 0] += slope[..., 1]
    return slope, zeros, length.detach()


def lifted(x: Tensor, *weights: Tensor) -> Flat:
    def value(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        point = dict(zip(dict(NET.named_parameters()), weights, strict=True))
        value: Tensor = torch.func.functional_call(NET, point, (x,)).square().mean()
        return value

    return (torch.func.vmap(torch.func.grad(value))(x, weights),)


CASES: dict[str, tuple[Callable[..., Flat], list[Tensor]]] = {
    "autograd": (twice, [numbers(0, 5, 2, 7, 7), *(numbers(i + 1, *shape) for i, shape in enumerate(SHAPES))]),
    "transforms": (lifted, [numbers(0, 3, 5, 2, 7, 7), *(numbers(i + 1, 3, *shape) for i, shape in enumerate(SHAPES))]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_graph_is_that_of_the_slow_tracer(case: str) -> None:
    f, inputs = CASES[case]
    graph, slow = operations_of(f, inputs), make_fx(f)(*inputs)
    slow.graph.eliminate_dead_code()
    assert [str(n.target) for n in graph.graph.nodes if n.op == "call_function"] == [
        str(n.target) for n in slow.graph.nodes if n.op == "call_function"
    ]
    for seed in (7, 8):  # twice: a run leaves nothing behind
        fresh = [numbers(seed + i, *value.shape) for i, value in enumerate(inputs)]
        assert all(map(torch.equal, graph(*fresh), f(*fresh)))


def test_one_tensor_given_twice_is_two_inputs() -> None:
    x = numbers(0, 3)
    graph = operations_of(lambda a, b: (a - 2 * b,), [x, x])
    assert torch.equal(graph(x, 3 * x)[0], x - 6 * x)


def test_a_function_that_reads_a_value_or_writes_outside_is_refused() -> None:
    outside = torch.zeros(3)
    with pytest.raises(NotRecordedError, match="read a value"):
        operations_of(lambda x: (x * float(x.sum()),), [numbers(0, 3)])
    with pytest.raises(NotRecordedError, match="write into a constant"):
        operations_of(lambda x: (outside.add_(x),), [numbers(0, 3)])
    with pytest.raises(RuntimeError, match=r"data-dependent|item|concrete"):
        flat_graph(lambda x: (x * float(x.sum()),), [numbers(0, 3)])


@pytest.mark.parametrize("case", CASES)
def test_operations_called_by_functions_have_the_same_bits(case: str) -> None:
    f, inputs = CASES[case]
    graph = operations_of(f, inputs)
    want, before = graph(*inputs), [n.target for n in graph.graph.nodes if n.op == "call_function"]
    after = [n.target for n in call_functions(graph).graph.nodes if n.op == "call_function"]
    assert torch.mul in after
    assert sum(a is b for a, b in zip(after, before, strict=True)) < len(before) / 2
    assert all(map(torch.equal, graph(*inputs), want))
