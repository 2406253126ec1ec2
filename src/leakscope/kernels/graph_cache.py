"""Traced graphs, kept for the next chunk of the same shape: tracing takes seconds, and a sweep has many chunks alike.

Two evaluations share a graph when network, pieces, knowledge, form, all shapes and what they differentiate in are equal. Pieces
that are dataclasses are equal when the very same class holds equal values (a class of the same name and text, such as one
defined anew in a notebook, is another class); any other object is equal to itself alone, and only while its attributes are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from types import MethodType

import torch
from torch import Tensor

from leakscope.core.model import Model

MOST = 32
Flat = tuple[Tensor, ...]
Graph = Callable[..., Flat]
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Key:
    """What two evaluations must share; it holds what it names by address, so that an address cannot come to mean another object."""

    told: Hashable
    alive: tuple[object, ...] = field(compare=False, repr=False)


_KEPT: OrderedDict[Key, Graph] = OrderedDict()


def graph_key(model: Model, facts: object, form: str, flat: Flat, wanted: tuple[str, ...]) -> Key:
    """Return what two evaluations must share to run the same graph; `wanted` are the unknowns it differentiates in."""
    shapes = tuple((tuple(t.shape), str(t.dtype), str(t.device)) for t in flat)
    alive: list[object] = [model]
    return Key((form, id(model), wanted, shapes, _told(facts, alive)), tuple(alive))


def find_graph(key: Key) -> Graph | None:
    """Return the graph kept under a key."""
    found = _KEPT.get(key)
    if found is not None:
        _KEPT.move_to_end(key)
    return found


def keep_graph(key: Key, graph: Graph) -> None:
    """Keep a graph; the one not used for longest goes when there are too many."""
    _KEPT[key] = graph
    while len(_KEPT) > MOST:
        _KEPT.popitem(last=False)


def _told(value: object, alive: list[object], inside: tuple[int, ...] = (), *, inputs: bool = True) -> Hashable:
    """Return what must be equal in two values; `alive` gathers what it names by address, `inside` is what it is a part of.

    Tensors are `inputs` of the graph, whose shapes are told elsewhere, but for those that an object of another kind holds.
    """
    if isinstance(value, _PLAIN):
        return type(value).__qualname__, repr(value)
    if isinstance(value, Tensor) and inputs:
        return "tensor"
    if id(value) in inside:
        return "itself"
    inside = (*inside, id(value))

    def part(of: object) -> Hashable:
        return _told(of, alive, inside, inputs=inputs)

    if isinstance(value, tuple | list):
        return type(value).__qualname__, tuple(part(item) for item in value)
    if isinstance(value, Mapping):
        return "mapping", tuple((part(k), part(v)) for k, v in value.items())
    if isinstance(value, MethodType):  # made anew at every look: its function and its object count
        return part(value.__func__), part(value.__self__)
    if is_dataclass(value) and not isinstance(value, type):
        alive.append(type(value))
        return id(type(value)), tuple(part(getattr(value, f.name)) for f in fields(value))
    alive.append(value)
    held = {} if isinstance(value, type | Tensor) else getattr(value, "__dict__", {})
    return id(value), _told(held, alive, inside, inputs=False)


WRITING = (
    "index_add",
    "index_put",
    "index_copy",
    "index_fill",
    "scatter",
    "slice_scatter",
    "select_scatter",
    "masked_scatter",
)


def own_memory(graph: torch.fx.GraphModule) -> None:
    """Give every operation that writes into a copy of a tensor a tensor of its own to copy.

    Under vmap such a tensor may be one row that stands for all lanes (a stride of 0). Eager torch copies it first; inductor
    (torch 2.11 and 2.13) adds what all lanes write into that one row, and every lane reads the sum.
    """
    for node in list(graph.graph.nodes):
        name = getattr(node.target, "__name__", "").removeprefix("aten.").split(".")[0].rstrip("_")
        if node.op != "call_function" or name not in WRITING:
            continue
        value = node.args[0].meta.get("val")
        if value is None or 0 in [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1]:
            with graph.graph.inserting_before(node):
                own = graph.graph.call_function(
                    torch.ops.aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}
                )
            node.args = (own, *node.args[1:])
