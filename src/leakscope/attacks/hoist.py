"""What an evaluation computes from the facts alone, computed once: the observed update scaled, masks, kernels turned round.

A traced evaluation takes what moves (unknowns, iteration) and what is fixed (the facts of a chunk). `hoist` cuts its graph in two:
operations that reach only what is fixed, and the rest, which finds their results among its arguments. They are the same
operations on the same numbers, so the bits stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, map_arg

from leakscope.attacks.graphs import Flat

MOST = 1.0  # what may be kept, in bytes, for each byte of what is fixed


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A graph in two parts: `first` makes values of the fixed inputs, `rest` takes what moves, fixed inputs, and those values.

    `used` are the places of the fixed inputs that `rest` takes.
    """

    first: GraphModule
    rest: GraphModule
    used: tuple[int, ...]

    def __call__(self, *flat: Tensor) -> Flat:
        """Return what the whole graph returns."""
        number = sum(node.op == "placeholder" for node in self.first.graph.nodes)
        moving, fixed = flat[: len(flat) - number], flat[len(flat) - number :]
        return bind(self, fixed)(*moving)


def bind(graph: Callable[..., Flat], fixed: Flat) -> Callable[..., Flat]:
    """Return an evaluation as a function of what moves; what is fixed is worked through at the first call, on its thread."""
    if not isinstance(graph, Hoisted):
        return lambda *moving: graph(*moving, *fixed)
    parts, held = graph, tuple(fixed[place] for place in graph.used)
    made: list[Flat] = []

    def call(*moving: Tensor) -> Flat:
        if not made:
            made.append(parts.first(*fixed))
        result: Flat = parts.rest(*moving, *held, *made[0])
        return result

    return call


def hoist(graph: GraphModule, moving: int) -> Hoisted | GraphModule:
    """Return a graph in two parts, its first `moving` inputs being those that change; itself, where that does not pay."""
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    loose = {*inputs[:moving], *_written(nodes), *(node for node in nodes if _draws(node))}
    for node in nodes:
        if any(source in loose for source in node.all_input_nodes):
            loose.add(node)
    steps = [node for node in nodes if node.op not in ("placeholder", "output")]
    early, late = ([node for node in steps if (node in loose) is wanted] for wanted in (False, True))
    output = nodes[-1]
    needed = {source for node in (*late, output) for source in node.all_input_nodes}
    kept = [node for node in early if node in needed and node.op != "get_attr"]
    fixed = inputs[moving:]
    if not kept or sum(map(_bytes, kept)) > MOST * sum(_bytes(node, owned=False) for node in fixed):
        return graph
    used = [place for place, node in enumerate(fixed) if node in needed]
    constants = [node for node in early if node.op == "get_attr"]
    first = _subgraph(graph, fixed, early, tuple(kept))
    rest = _subgraph(graph, [*inputs[:moving], *(fixed[i] for i in used), *kept], [*constants, *late], output.args[0])
    return Hoisted(first, rest, tuple(used))


def _subgraph(whole: GraphModule, inputs: Sequence[Node], steps: Iterable[Node], outputs: Argument) -> GraphModule:
    """Return the graph of some steps; what `inputs` compute in the whole graph comes from outside."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in steps:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(map_arg(outputs, copies.__getitem__))
    graph.eliminate_dead_code()
    return GraphModule(whole, graph)


def _written(nodes: Iterable[Node]) -> set[Node]:
    """Return values that an operation writes into, and those they are views of: each evaluation needs them fresh."""
    found: set[Node] = set()
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            while isinstance(value, Node) and value not in found:
                found.add(value)
                value = value.args[0] if _is_view(value) or _writes(value) else None
    return found


def _draws(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _is_view(node: Node) -> bool:
    """Return whether a value lies in the memory of the first argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__name__", "") == "getitem"
    returns = node.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _bytes(node: Node, *, owned: bool = True) -> int:
    """Return the bytes of a value; with `owned` 0 where it lies in the memory of another."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or (owned and _is_view(node)):
        return 0
    return value.numel() * value.element_size()
