"""The flat graph of the tensor operations of one run of a function, below autograd and function transforms.

`make_fx` records the same operations but takes 2 ms for each of them; a double backward through ResNet20 has 2,000.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

# fmt: off
_NAMES = [
    "add", "sub", "mul", "div", "neg", "pow", "sqrt", "abs", "sgn", "exp", "log", "sum", "mean", "clamp_min",
    "where", "stack", "cat", "clone", "mm", "t", "select", "unsqueeze", "squeeze", "expand", "view", "reshape",
    "permute", "transpose", "sigmoid", "tanh", "relu", "convolution", "zeros_like", "ones_like",
]
# fmt: on
_FUNCTIONS = {name: getattr(torch, name, None) or getattr(torch.Tensor, name) for name in _NAMES}


class NotRecordedError(Exception):
    """An operation read a value, wrote into a tensor from outside, or used one that no operation returned."""


def operations_of(f: Callable[..., object], inputs: Iterable[Tensor]) -> GraphModule:
    """Return the operations of `f` on inputs of these shapes; `NotRecordedError` if they depend on values."""
    recorder = _Recorder(tuple(inputs))
    with recorder:
        result = f(*recorder.inputs)
    recorder.graph.output(tree_map_only(Tensor, recorder.node, result))
    graph = GraphModule(recorder.constants, recorder.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def call_functions(graph: GraphModule) -> GraphModule:
    """Return the graph with its operations called by torch's functions: a call by `torch.ops` takes 1 to 2 us more."""
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.namespace == "aten":
            node.target = _FUNCTIONS.get(node.target.overloadpacket.__name__, node.target)
    graph.recompile()
    return graph


class _Recorder(TorchDispatchMode):
    """Records every operation; a tensor that none of them returned is a constant of the graph."""

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.inputs = tuple(value.detach() for value in inputs)  # one tensor given twice is two inputs
        self.constants: dict[str, Tensor] = {}
        self.nodes = WeakTensorKeyDictionary()
        for number, value in enumerate(self.inputs):
            self._name(value, self.graph.placeholder(f"input_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise torch loads its compiler, which takes over a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and record it."""
        del types
        named = dict(kwargs or {})
        given = tree_map_only(Tensor, self.node, (args, named))
        out = func(*args, **named)
        if func._schema.is_mutable and any(
            node.op == "get_attr" for node in tree_leaves(given) if isinstance(node, Node)
        ):
            raise NotRecordedError(f"{func} may write into a constant")
        node = self.graph.call_function(func, *given)
        if isinstance(out, Tensor):
            self._name(out, node)
        elif isinstance(out, tuple | list):
            for place, each in enumerate(out):
                if isinstance(each, Tensor):
                    self._name(each, self.graph.call_function(operator.getitem, (node, place)))
        elif out is not None:
            raise NotRecordedError(f"{func} read a value")
        return out

    def _name(self, out: Tensor, node: Node) -> None:
        self.nodes[out] = node
        with torch._C._DisableTorchDispatch():
            node.meta["val"] = torch.empty(out.shape, dtype=out.dtype, device="meta")

    def node(self, value: Tensor) -> Node:
        """Return the node of a tensor."""
        known = self.nodes.get(value)
        if known is not None:
            return known  # type: ignore[no-any-return]
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        node = self.graph.get_attr(name)
        self._name(value, node)
        return node
