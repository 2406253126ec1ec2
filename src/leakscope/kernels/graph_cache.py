"""The cache of traced graphs and CUDA recordings, and when a function becomes one.

Both run the same operations as the function without the cost of modules and transforms, but take seconds to make. So calls are
counted (`Staged`): on a CUDA device a function is recorded after a few calls, elsewhere (or if that fails) traced after more.

Two calls may share a graph when their keys are equal (`graph_key`): the identical network, equal constants, equal inputs except
for tensor values. Dataclasses are equal when the identical class holds equal values (a class redefined in a notebook is another
class). Any other object equals only itself while its attributes are unchanged; a tensor constant only itself until overwritten.
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

from leakscope.kernels.operations import NotRecordedError, operations_of

MOST = 64  # entries in all; the least recently used go first
Flat = tuple[Tensor, ...]
Graph = Callable[..., Any]
G = TypeVar("G")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Key:
    """What two calls must share; `alive` keeps objects that are identified by address alive, so that no address is reused."""

    purpose: str
    parts: Hashable
    alive: tuple[object, ...] = field(compare=False, repr=False)


@dataclass(slots=True)
class Staged(Generic[G]):
    """A function's call count, and its graph or recording after `trace_after` or `record_after` calls (None: never; each tried once)."""

    record_after: int | None
    trace_after: int | None
    graph: G | None = None
    calls: int = 0

    def at_call(self, record: Callable[[], G | None], trace: Callable[[], G | None]) -> G | None:
        """Return the graph for this call, created now if due; None: run the function itself."""
        if self.graph is None and self.calls == self.record_after:
            self.graph = record()
        if self.graph is None and self.calls == self.trace_after:
            self.graph = trace()
        self.calls += 1
        return self.graph


_CACHE: OrderedDict[Key, Staged[Graph]] = OrderedDict()
_LOCK = RLock()  # trainings in several threads count and trace one at a time


def graph_key(
    purpose: str, *, same: Iterable[object] = (), constants: object = (), inputs: object = (), flat: Iterable[Tensor]
) -> Key:
    """Return what two calls must share to run one graph.

    `same` are objects compared by identity, `constants` values that the graph holds, `inputs` values whose tensors are inputs of
    the graph, `flat` those tensors, whose shapes, dtypes and devices must agree.
    """
    alive = list(same)
    names = tuple(id(value) for value in alive)
    shapes = tuple((tuple(t.shape), str(t.dtype), str(t.device)) for t in flat)
    parts = names, shapes, _structure(constants, alive, inputs=False), _structure(inputs, alive)
    return Key(purpose, parts, tuple(alive))


def find_graph(key: Key) -> Graph | None:
    """Return the cached graph of a key."""
    with _LOCK:
        staged = _CACHE.get(key)
        if staged is not None:
            _CACHE.move_to_end(key)
        return None if staged is None else staged.graph


def keep_graph(key: Key, graph: Graph) -> None:
    """Cache a graph."""
    _keep(key, Staged(None, None, graph))


def graph_at_call(
    key: Key,
    *,
    record_after: int | None = None,
    trace_after: int | None = None,
    record: Callable[[], Graph | None] = lambda: None,
    trace: Callable[[], Graph | None] = lambda: None,
) -> Graph | None:
    """Return the graph for this call under a key (see `Staged`); calls are counted in the cache."""
    with _LOCK:
        staged = _CACHE.get(key) or Staged[Graph](record_after, trace_after)
        _keep(key, staged)
        return staged.at_call(record, trace)


def forget(purpose: str | None = None) -> None:
    """Drop all graphs and counts, or those of one purpose, to free their memory."""
    with _LOCK:
        for key in [key for key in _CACHE if purpose in (None, key.purpose)]:
            del _CACHE[key]


def flat_graph(f: Callable[..., object], inputs: Iterable[Tensor], *, by_run: bool = True) -> GraphModule:
    """Return the flat graph of the tensor operations of `f` on inputs of these shapes; raises the tracer's errors.

    The operations of one run are recorded (`operations_of`), or with `by_run=False` and where that fails traced by `make_fx`, five
    times as slow.
    """
    given = tuple(inputs)
    if by_run:
        try:
            return operations_of(f, given)
        except NotRecordedError:
            pass
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: GraphModule = make_fx(f)(*given)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _keep(key: Key, staged: Staged[Graph]) -> None:
    with _LOCK:
        _CACHE[key] = staged
        _CACHE.move_to_end(key)
        while len(_CACHE) > MOST:
            _CACHE.popitem(last=False)


def _structure(value: object, alive: list[object], inside: tuple[int, ...] = (), *, inputs: bool = True) -> Hashable:
    """Return what must be equal in two values; `alive` collects objects compared by address, `inside` are the enclosing values.

    Tensors are `inputs` of the graph, with their shapes in the key, except those held by objects of other kinds.
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
    if isinstance(value, MethodType):  # a new object at every access: compare its function and its object
        return part(value.__func__), part(value.__self__)
    if is_dataclass(value) and not isinstance(value, type):
        alive.append(type(value))
        return id(type(value)), tuple(part(getattr(value, f.name)) for f in fields(value))
    alive.append(value)
    if isinstance(value, Tensor):
        return id(value), 0 if value.is_inference() else value._version
    attributes = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    return id(value), _structure(attributes, alive, inside, inputs=False)
