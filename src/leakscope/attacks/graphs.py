"""Traced graphs, kept for the next chunk of the same shape: tracing takes seconds, and a sweep has many chunks alike.

Two evaluations share a graph when network, pieces, knowledge, form, all shapes and what they differentiate in are equal. Pieces are
compared by their text with memory addresses in it, and whatever the text stands for is kept alive beside the graph, so that an
address cannot come to mean another function.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.view import Facts
from leakscope.core.model import Model
from leakscope.core.tree import map_tensors

MOST = 32
Flat = tuple[Tensor, ...]
Graph = Callable[..., Flat]


@dataclass(frozen=True, slots=True)
class _Kept:
    graph: Graph
    alive: tuple[Model, Facts]


_KEPT: OrderedDict[str, _Kept] = OrderedDict()


def graph_key(model: Model, facts: Facts, form: str, flat: Flat, wanted: tuple[str, ...]) -> str:
    """Return what two evaluations must share to run the same graph; `wanted` are the unknowns it differentiates in."""
    shapes = [(tuple(t.shape), str(t.dtype), str(t.device)) for t in flat]
    return repr((form, id(model), wanted, shapes, _without_values(facts)))


def find_graph(key: str) -> Graph | None:
    """Return the graph kept under a key."""
    found = _KEPT.get(key)
    if found is None:
        return None
    _KEPT.move_to_end(key)
    return found.graph


def keep_graph(key: str, graph: Graph, model: Model, facts: Facts) -> None:
    """Keep a graph; the one not used for longest goes when there are too many."""
    _KEPT[key] = _Kept(graph, (model, _without_values(facts)))
    while len(_KEPT) > MOST:
        _KEPT.popitem(last=False)


def _without_values(facts: Facts) -> Facts:
    return map_tensors(lambda t: t.new_zeros((), device="cpu"), facts)


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
