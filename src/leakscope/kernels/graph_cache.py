"""The one cache of traced graphs and CUDA recordings, and the one rule for when a function becomes one.

A flat graph of tensor operations and a recording of CUDA kernels run the same operations as the function they were made of, without
the cost of modules and function transforms; making one takes seconds. So calls are counted (`Staged`): on a CUDA device a function
is recorded after a few calls, elsewhere (or where it cannot be recorded) traced after more, and what cannot be traced stays plain.

Two calls may share a graph when their keys are equal (`graph_key`): the very same network, equal values baked into the graph, equal
inputs but for the numbers in their tensors. Dataclasses are equal when the very same class holds equal values (a class of the same
name and text, such as one defined again in a notebook, is another class); any other object is equal to itself alone, and only
while its attributes are; a tensor inside the graph is equal to itself alone, and only until it is written to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from threading import RLock
from types import MethodType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule

MOST = 64  # entries of all purposes together; those not used for longest go first
Flat = tuple[Tensor, ...]
Graph = Callable[..., Any]
G = TypeVar("G")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Key:
    """What two calls must share; `alive` holds what is named by address, so that an address cannot come to mean another object."""

    purpose: str
    parts: Hashable
    alive: tuple[object, ...] = field(compare=False, repr=False)


@dataclass(slots=True)
class Staged(Generic[G]):
    """A function on its way to a graph: how often it was called, and its graph or recording once there is one.

    It is recorded after `record_after` calls and traced after `trace_after`, each tried once; None: never.
    """

    record_after: int | None
    trace_after: int | None
    graph: G | None = None
    calls: int = 0

    def at_call(self, record: Callable[[], G | None], trace: Callable[[], G | None]) -> G | None:
        """Return the graph that this call should run, made now if its time has come; None: run the function itself."""
        if self.graph is None and self.calls == self.record_after:
            self.graph = record()
        if self.graph is None and self.calls == self.trace_after:
            self.graph = trace()
        self.calls += 1
        return self.graph


_CACHE: OrderedDict[Key, Staged[Any]] = OrderedDict()
_LOCK = RLock()  # two trainings in two threads count and trace one after the other


def graph_key(
    purpose: str, *, same: Iterable[object] = (), constants: object = (), inputs: object = (), flat: Iterable[Tensor]
) -> Key:
    """Return what two calls must share to run one graph.

    `same` are objects that must be the very same; `constants` are values that the graph holds; `inputs` are values whose tensors
    the graph takes as inputs; `flat` are those tensors, whose shapes, dtypes and devices must agree.
    """
    alive = list(same)
    names = tuple(id(value) for value in alive)
    shapes = tuple((tuple(t.shape), str(t.dtype), str(t.device)) for t in flat)
    parts = names, shapes, _structure(constants, alive, inputs=False), _structure(inputs, alive)
    return Key(purpose, parts, tuple(alive))


def find_graph(key: Key) -> Graph | None:
    """Return the graph kept under a key."""
    with _LOCK:
        staged = _CACHE.get(key)
        if staged is not None:
            _CACHE.move_to_end(key)
        return None if staged is None else staged.graph


def keep_graph(key: Key, graph: Graph) -> None:
    """Keep a graph for later calls."""
    _keep(key, Staged(None, None, graph))


def graph_at_call(
    key: Key,
    *,
    record_after: int | None = None,
    trace_after: int | None = None,
    record: Callable[[], Graph | None] = lambda: None,
    trace: Callable[[], Graph | None] = lambda: None,
) -> Graph | None:
    """Return the graph that this call under a key should run (see `Staged`); calls are counted in the cache."""
    with _LOCK:
        staged = _CACHE.get(key) or Staged[Graph](record_after, trace_after)
        _keep(key, staged)
        return staged.at_call(record, trace)


def forget(purpose: str | None = None) -> None:
    """Drop all graphs and counts, or those of one purpose: what work that has ended held in memory."""
    with _LOCK:
        for key in [key for key in _CACHE if purpose in (None, key.purpose)]:
            del _CACHE[key]


def flat_graph(f: Callable[..., Any], inputs: Iterable[Tensor]) -> GraphModule:
    """Return the flat graph of the tensor operations that `f` runs on inputs of these shapes; raises what stops the tracer."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: GraphModule = make_fx(f)(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _keep(key: Key, staged: Staged[Any]) -> None:
    with _LOCK:
        _CACHE[key] = staged
        _CACHE.move_to_end(key)
        while len(_CACHE) > MOST:
            _CACHE.popitem(last=False)


def _structure(value: object, alive: list[object], inside: tuple[int, ...] = (), *, inputs: bool = True) -> Hashable:
    """Return what must be equal in two values; `alive` gathers what it names by address, `inside` is what it is a part of.

    Tensors are `inputs` of the graph, whose shapes are in the key anyway, but for those that an object of another kind holds.
    """
    if isinstance(value, _PLAIN):
        return type(value).__qualname__, repr(value)
    if isinstance(value, Tensor) and inputs:
        return "tensor"
    if id(value) in inside:
        return "itself"
    inside = (*inside, id(value))

    def part(of: object) -> Hashable:
        return _structure(of, alive, inside, inputs=inputs)

    if isinstance(value, tuple | list):
        return type(value).__qualname__, tuple(part(item) for item in value)
    if isinstance(value, Mapping):
        return "mapping", tuple((part(k), part(v)) for k, v in value.items())
    if isinstance(value, MethodType):  # a new object at every access: its function and its object count
        return part(value.__func__), part(value.__self__)
    if is_dataclass(value) and not isinstance(value, type):
        alive.append(type(value))
        return id(type(value)), tuple(part(getattr(value, f.name)) for f in fields(value))
    alive.append(value)
    if isinstance(value, Tensor):
        return id(value), 0 if value.is_inference() else value._version
    attributes = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    return id(value), _structure(attributes, alive, inside, inputs=False)
