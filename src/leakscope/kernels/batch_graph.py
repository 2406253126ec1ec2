"""A function of a batch as the flat graph of its tensor operations, traced once and run on batches of any size.

For a small network, modules, autograd and function modes cost more Python time than the arithmetic, and threads share one Python.
The function is run on two and on three examples and the operations below autograd are recorded, backward passes included; sizes
that grow with the batch become multiples of the batch size. Values that do not depend on the batch, such as weights with a folded
norm, are constants of the graph: a changed weight needs a new graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

SIZES = (2, 3)  # examples of the two traces
ATEN = torch.ops.aten
FRESH = (  # operations that return new memory
    ATEN.convolution.default,
    ATEN.convolution_backward.default,
    ATEN.add.Tensor,
    ATEN.threshold_backward.default,
)


class NotTraceableError(Exception):
    """The operations depend on values, or not linearly on the number of examples."""


@dataclass(frozen=True, slots=True)
class BatchGraph:
    """The operations of a function of a batch; inputs need the memory layout of the traced ones."""

    graph: GraphModule
    layout: torch.memory_format

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the function's result for a batch."""
        with torch.no_grad():
            outputs: Tensor = self.graph(laid_out(inputs, self.layout))
        return outputs


def batch_graph(
    f: Callable[[Tensor], Tensor | None],
    shape: Sequence[int],
    dtype: torch.dtype,
    layout: torch.memory_format = torch.contiguous_format,
) -> BatchGraph | None:
    """Return `f` as a flat graph for batches of inputs of this shape and layout on the CPU; None if it cannot be traced."""
    try:
        few, more = (_trace(f, laid_out(torch.zeros(size, *shape, dtype=dtype), layout)) for size in SIZES)
        graph = _merged(few, more)
    except (NotTraceableError, RuntimeError):  # RuntimeError: such as a view of channels-last images
        return None
    _spare_copies(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return BatchGraph(graph, layout)


def laid_out(inputs: Tensor, layout: torch.memory_format) -> Tensor:
    """Return a copy with exactly these strides, even with one channel, where strides are ambiguous."""
    return torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device, memory_format=layout).copy_(inputs)


def _trace(f: Callable[[Tensor], Tensor | None], batch: Tensor) -> GraphModule:
    """Return the operations of one run, with its sizes as constants."""
    tracer = _Tracer(batch)
    with tracer:
        out = f(batch)
    if out is None or id(out) not in tracer.nodes:
        raise NotTraceableError
    tracer.graph.output(tracer.nodes[id(out)])
    return GraphModule(tracer.constants, tracer.graph)


class _Tracer(TorchDispatchMode):
    """Records every operation on values derived from the batch; keeps all tensors alive, so that ids stay unique."""

    def __init__(self, batch: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.constants: dict[str, Tensor] = {}
        self.alive: list[object] = [batch]
        self.nodes = {id(batch): self.graph.placeholder("batch")}
        self.places = {batch.untyped_storage().data_ptr()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise torch loads its compiler, which takes over a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and record it if it depends on the batch."""
        del types
        named = dict(kwargs or {})
        out = func(*args, **named)
        self.alive.append((args, named, out))
        if any(isinstance(leaf, Tensor) and id(leaf) in self.nodes for leaf in tree_leaves((args, named))):
            self._write(func, args, named, out)
        return out

    def _write(self, func: OpOverload, args: tuple[object, ...], named: dict[str, object], out: object) -> None:
        if func._schema.is_mutable and id(args[0]) not in self.nodes:
            raise NotTraceableError  # a constant would change at every call
        node = self.graph.call_function(func, *tree_map_only(Tensor, self._node, (args, named)))
        if isinstance(out, Tensor):
            self._name(out, node)
            return
        if not isinstance(out, (tuple, list)):
            raise NotTraceableError  # a value was read
        for place, each in enumerate(out):
            if isinstance(each, Tensor):
                self._name(each, self.graph.call_function(operator.getitem, (node, place)))

    def _name(self, out: Tensor, node: Node) -> None:
        self.nodes[id(out)] = node
        self.places.add(out.untyped_storage().data_ptr())
        node.meta["kind"] = out.shape, out.dtype

    def _node(self, value: Tensor) -> Node:
        if id(value) not in self.nodes:
            place = value.untyped_storage().data_ptr()
            if place and place in self.places:
                raise NotTraceableError  # it came from the batch in an unrecorded way
            name = f"constant{len(self.constants)}"
            self.constants[name] = value
            self.nodes[id(value)] = self.graph.get_attr(name)
        return self.nodes[id(value)]


def _merged(few: GraphModule, more: GraphModule) -> GraphModule:
    """Return the graph for any number of examples, from the graphs for SIZES."""
    nodes = list(few.graph.nodes)
    if [(n.op, n.target) for n in nodes] != [(n.op, n.target) for n in more.graph.nodes]:
        raise NotTraceableError
    with few.graph.inserting_after(nodes[0]):
        count = few.graph.call_function(ATEN.sym_size.int, (nodes[0], 0))
    for a, b in zip(nodes, more.graph.nodes, strict=True):
        left, form = tree_flatten((a.args, a.kwargs))
        right, other = tree_flatten((b.args, b.kwargs))
        if form != other:
            raise NotTraceableError
        with few.graph.inserting_before(a):
            both = [_both(count, *pair) for pair in zip(left, right, strict=True)]
        a.args, a.kwargs = tree_unflatten(both, form)
    return few


def _both(count: Node, a: object, b: object) -> object:
    """Return an argument for `count` examples, from those for SIZES."""
    if isinstance(a, Node) and isinstance(b, Node) and a.name == b.name:
        return a
    if type(a) is type(b) and not isinstance(a, Node) and a == b:
        return a
    if type(a) is int and type(b) is int and a % SIZES[0] == 0 and a // SIZES[0] * SIZES[1] == b:
        return count.graph.call_function(operator.mul, (count, a // SIZES[0]))
    raise NotTraceableError


def _spare_copies(graph: Graph) -> None:
    """Let sums and ReLUs write into an operand that nothing else reads, and drop detach."""
    for node in graph.nodes:
        node.meta["fresh"] = node.target in FRESH
    for node in graph.nodes:
        if node.target is ATEN.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif node.target is ATEN.relu.default and _is_free(node.args[0], node):
            node.target = ATEN.relu_.default
        elif node.target is ATEN.threshold_backward.default and _is_free(node.args[0], node):
            node.target, node.kwargs = ATEN.threshold_backward.grad_input, {"grad_input": node.args[0]}
        elif node.target is ATEN.add.Tensor and not node.kwargs:
            free = [place for place in (0, 1) if _is_free(node.args[place], node)]
            if free:
                node.target, node.args = ATEN.add_.Tensor, (node.args[free[0]], node.args[1 - free[0]])


def _is_free(value: object, reader: Node) -> bool:
    """Return whether a node owns its memory and matches the shape and type of its only reader's result."""
    if not isinstance(value, Node) or len(value.users) > 1 or value.meta.get("kind") != reader.meta["kind"]:
        return False
    source = value.args[0] if value.target is operator.getitem else value
    return isinstance(source, Node) and bool(source.meta["fresh"])
