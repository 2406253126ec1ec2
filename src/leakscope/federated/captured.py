"""A function of tensors on a CUDA device as one launch: its kernels are recorded once and then played again.

A step of a small network is thousands of short kernels, and Python launches them more slowly than the device runs them. A CUDA
graph plays the very same kernels, so the bits stay. Only for functions that decide nothing by the value of a tensor and always
see the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from leakscope.core.tree import fill, flattened, tensors

V = TypeVar("V")
WARM_UP = 3  # calls before recording, in which libraries set themselves up


def captured(f: Callable[..., V], arguments: tuple[Any, ...]) -> Callable[..., V]:
    """Return `f` as a recording made with these arguments, all of whose tensors are on one CUDA device; no gradients flow through it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    flat_f, form = flattened(f, arguments)
    given = [t.clone() for t in tensors(arguments)]
    with torch.no_grad():
        graph = _on_device(make_fx(lambda *flat: flat_f(flat))(*given))
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                graph(*given)
        torch.cuda.current_stream().wait_stream(aside)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording):
            made: tuple[Tensor, ...] = tuple(graph(*given))

    def replay(*new: Any) -> V:
        for place, value in zip(given, tensors(new), strict=True):
            place.copy_(value)
        recording.replay()
        return fill(form[0], [t.clone() for t in made])

    return replay


def _on_device(graph: GraphModule) -> GraphModule:
    """Return the graph with its constants where they are used: a recording cannot fetch them from the host."""
    moves = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten._to_copy.default)
    for node in list(graph.graph.nodes):
        given = node.args[0] if node.target in moves else None
        if isinstance(given, Node) and given.op == "get_attr":
            value = node.target(getattr(graph, str(given.target)), **node.kwargs)
            name = f"_constant_of_{node.name}"
            graph.register_buffer(name, value)
            with graph.graph.inserting_before(node):
                node.replace_all_uses_with(graph.graph.get_attr(name))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
