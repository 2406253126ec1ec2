"""Traced graphs, kept for the next chunk of the same shape: tracing takes seconds, and a sweep has many chunks alike.

Two evaluations share a graph when network, pieces, knowledge, form and all shapes are equal. Pieces are compared by their text
with memory addresses in it, and whatever the text stands for is kept alive beside the graph, so that an address cannot come to
mean another function.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

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


def graph_key(model: Model, facts: Facts, form: str, flat: Flat) -> str:
    """Return what two evaluations must share to run the same graph."""
    shapes = [(tuple(t.shape), str(t.dtype), str(t.device)) for t in flat]
    return repr((form, id(model), shapes, _without_values(facts)))


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
