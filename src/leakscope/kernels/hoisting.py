"""Compute once what an evaluation derives from fixed inputs alone: the scaled observed update, masks, flipped kernels.

A traced evaluation takes moving inputs (unknowns, iteration) and fixed ones (the facts of a chunk). `hoist` splits its graph into
the operations that depend on fixed inputs alone and the rest. Operations and numbers are the same, so the bits are too.
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
from leakscope.kernels.operations import call_functions

HIDDEN = ("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")  # views not declared in the schema
STATISTICS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")  # undeclared writes of running means
MOST = 1.0  # most bytes of hoisted values per byte of fixed inputs


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A graph in two parts: `first` computes values from fixed inputs; `rest` takes moving inputs, the fixed ones in `used`, and them."""

    first: GraphModule
    rest: GraphModule
    used: tuple[int, ...]

    def __call__(self, *flat: Tensor) -> Flat:
        """Return the result of the whole graph."""
        number = sum(node.op == "placeholder" for node in self.first.graph.nodes)
        moving, fixed = flat[: len(flat) - number], flat[len(flat) - number :]
        return bind(self, fixed)(*moving)


def bind(graph: Callable[..., Flat], fixed: Flat) -> Callable[..., Flat]:
    """Return an evaluation as a function of its moving inputs; the fixed part runs once, at the first call.

    A result that depends on no moving input is the same tensor at every call: do not write into results.
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
    """Return a graph in two parts, given its first `moving` inputs; the graph itself if that does not pay."""
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
        return call_functions(graph)
    used = [place for place, node in enumerate(fixed) if node in needed]
    constants = [node for node in early if node.op == "get_attr"]
    first = _subgraph(graph, fixed, early, tuple(hoisted))
    rest = _subgraph(
        graph, [*inputs[:moving], *(fixed[i] for i in used), *hoisted], [*constants, *late], output.args[0]
    )
    return Hoisted(first, call_functions(rest), tuple(used))


def _subgraph(whole: GraphModule, inputs: Sequence[Node], steps: Iterable[Node], outputs: Argument) -> GraphModule:
    """Return the graph of some steps; the values of `inputs` come from outside."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in steps:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(map_arg(outputs, copies.__getitem__))
    graph.eliminate_dead_code()
    return GraphModule(whole, graph)


def _written(nodes: Iterable[Node]) -> set[Node]:
    """Return values that an operation writes into, and those that share their memory: each evaluation needs fresh ones."""
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
    """Return the value that another is a view of; nothing if it owns its memory."""
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
    """Return the bytes that values add to the inputs; views count as their base, each memory once."""
    owners = set()
    for value in values:
        while base := _base(value):
            value = base[0]
        owners.add(value)
    return sum(_bytes(value) for value in owners if value.op != "placeholder")


def _bytes(node: Node) -> int:
    return sum(t.numel() * t.element_size() for t in tree_leaves(node.meta.get("val")) if isinstance(t, Tensor))
