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
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, map_arg
from torch.utils._pytree import tree_leaves

from leakscope.kernels.graph_cache import Flat

HIDDEN = (
    "_unsafe_view",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsafe_chunk",
)  # views whose schema does not say so
STATISTICS = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)  # they write running means and do not say so
MOST = 1.0  # bytes that hoisted values may take for each byte of fixed inputs


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
    """Return an evaluation as a function of what moves; what is fixed is worked through at the first call, on its thread.

    A result that depends on nothing that moves is the same tensor at every call: do not write into results.
    """
    if not isinstance(graph, Hoisted):
        return lambda *moving: graph(*moving, *fixed)
    parts, fixed_used = graph, tuple(fixed[place] for place in graph.used)
    constants: list[Flat] = []

    def call(*moving: Tensor) -> Flat:
        if not constants:
            constants.append(parts.first(*fixed))
        result: Flat = parts.rest(*moving, *fixed_used, *constants[0])
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
    hoisted = [node for node in early if node in needed and node.op != "get_attr"]
    fixed = inputs[moving:]
    if not hoisted or _hoisted_bytes(hoisted) > MOST * sum(map(_bytes, fixed)):
        return graph
    used = [place for place, node in enumerate(fixed) if node in needed]
    constants = [node for node in early if node.op == "get_attr"]
    first = _subgraph(graph, fixed, early, tuple(hoisted))
    rest = _subgraph(
        graph, [*inputs[:moving], *(fixed[i] for i in used), *hoisted], [*constants, *late], output.args[0]
    )
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
    """Return values that an operation writes into, and those they share memory with: each evaluation needs them fresh."""
    written: set[Node] = set()
    waiting = [target for node in nodes for target in _targets(node)]
    while waiting:
        value = waiting.pop()
        if value not in written:
            written.add(value)
            waiting += [*_base(value), *_targets(value)]
    return written


def _targets(node: Node) -> list[Node]:
    """Return the arguments that an operation writes into."""
    if not isinstance(node.target, OpOverload):
        return []
    arguments = node.target._schema.arguments
    given = {**dict(zip((argument.name for argument in arguments), node.args, strict=False)), **node.kwargs}
    statistics = _name(node) in STATISTICS
    written = [
        given.get(argument.name)
        for argument in arguments
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (statistics and argument.name.startswith("running_"))
    ]
    return [value for value in tree_leaves(written) if isinstance(value, Node)]


def _base(node: Node) -> list[Node]:
    """Return the value in whose memory another lies; nothing for one that has memory of its own."""
    if isinstance(node.target, OpOverload):
        returns = node.target._schema.returns
        shared = _name(node) in HIDDEN or (bool(returns) and returns[0].alias_info is not None)
    else:
        shared = getattr(node.target, "__name__", "") == "getitem"
    return [value for value in node.args[:1] if shared and isinstance(value, Node)]


def _name(node: Node) -> str:
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def _draws(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _hoisted_bytes(values: Iterable[Node]) -> int:
    """Return the bytes that values hold beside the inputs: each memory once, views as what they are views of."""
    owners = set()
    for value in values:
        while base := _base(value):
            value = base[0]
        owners.add(value)
    return sum(_bytes(value) for value in owners if value.op != "placeholder")


def _bytes(node: Node) -> int:
    return sum(t.numel() * t.element_size() for t in tree_leaves(node.meta.get("val")) if isinstance(t, Tensor))
