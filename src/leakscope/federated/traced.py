"""The answers of a group of clients as a flat graph of tensor operations, traced once and run in every later round.

In a round of small clients the transforms (vmap, grad) cost as much as the arithmetic, and two cores wait for the one Python they
share. The graph runs the same operations without them, so the bits stay. On a CUDA device it is a recording (`captured`).

Two groups share a graph when the very same network, defences, loss and context train them, with equal settings of the local training
and equal shapes. Pieces are told apart by their address, not by their text: a text may leave out what an object holds, and two
classes may have one name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.clients.client import Answer
from leakscope.core.model import Model
from leakscope.core.tree import fill, flattened, lift, map_tensors, tensors
from leakscope.kernels.recordings import recorded
from leakscope.learning.losses import LOSSES

AFTER = 40  # groups of one shape after which tracing (0.3 s for each local step of a LeNet, 1 to 4 s of a ResNet) may be about to pay
MOST_STEPS = 16  # tracing more local steps takes longer than most trainings
MOST_KEPT = 64  # kinds of groups: unequal clients make many
AFTER_ON_CUDA = 1  # a recording costs three calls, and plays in a small part of one
MOST_STEPS_ON_CUDA = 1_000  # hundreds of kernels each, all of which a recording names

Around = Callable[[], AbstractContextManager[object]]
Flat = tuple[Tensor, ...]


@dataclass(slots=True)
class _Seen:
    """Groups of one kind: how many were trained, and their graph once it is traced or recorded.

    `alive` holds what the key names by its address, so that the address cannot come to mean another network or defence.
    """

    alive: tuple[object, ...]
    groups: int = 0
    graph: Callable[..., Answer] | None = None


_SEEN: OrderedDict[str, _Seen] = OrderedDict()
_LOCK = RLock()  # two trainings in two threads count and trace one after the other


def answering(
    one: Callable[..., Answer], client: Client, model: Model, arguments: tuple[Any, ...], steps: int, around: Around
) -> Callable[[], Answer]:
    """Return what computes the answers of a group: `one` lifted over its clients, or its graph after enough groups alike.

    `one` answers for one client; it must depend on `client`, the network that clients were given (`model`) and its arguments
    alone, and nothing may change inside them from round to round. Tracing is done here, not in what is returned, which may run
    in any thread.
    """

    def transformed() -> Answer:
        with around():
            return lift(one)(*arguments)

    on_cuda = all(t.is_cuda for t in tensors(arguments))
    if steps > (MOST_STEPS_ON_CUDA if on_cuda else MOST_STEPS):
        return transformed
    with _LOCK:
        seen = _seen(client, model, arguments, around)
        seen.groups += 1
        if seen.groups == (AFTER_ON_CUDA if on_cuda else AFTER) + 1:
            seen.graph = (_recorded if on_cuda else _traced)(one, arguments, around)
        graph = seen.graph
    return transformed if graph is None else lambda: graph(*arguments)


def forget() -> None:
    """Forget all groups and graphs: what a training that has ended held in memory."""
    with _LOCK:
        _SEEN.clear()


def _seen(client: Client, model: Model, arguments: tuple[Any, ...], around: Around) -> _Seen:
    shapes = [(tuple(t.shape), str(t.dtype), str(t.device)) for t in tensors(arguments)]
    pieces = (model, around, LOSSES[client.loss], client.scaling, *client.defences, client.on_model, client.on_data)
    key = repr(([id(piece) for piece in pieces], client.local, _emptied(arguments), shapes))
    found = _SEEN.setdefault(key, _Seen(pieces))
    _SEEN.move_to_end(key)
    while len(_SEEN) > MOST_KEPT:
        _SEEN.popitem(last=False)
    return found


def _traced(one: Callable[..., Answer], arguments: tuple[Any, ...], around: Around) -> Callable[..., Answer] | None:
    """Return the graph; nothing where the network cannot be lifted or traced.

    Whatever stops the tracing, clients train without it: an error of their own (no memory, a wrong input) is told there.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    flat_one, shape = flattened(one, arguments)
    lifted = torch.func.vmap(flat_one, randomness="error")

    def call(*flat: Tensor) -> Flat:
        with around():
            made: Flat = lifted(flat)
            return made

    try:
        with torch.no_grad():
            graph = make_fx(call)(*tensors(arguments))
    except Exception:  # the tracer fails in many ways, with assertions too
        return None
    graph.graph.eliminate_dead_code()
    graph.recompile()
    form: Answer = _emptied(shape[0])

    def play(*arguments: Any) -> Answer:
        with torch.no_grad():
            return fill(form, list(graph(*tensors(arguments))))

    return play


def _recorded(one: Callable[..., Answer], arguments: tuple[Any, ...], around: Around) -> Callable[..., Answer] | None:
    """Return a recording of the kernels; nothing where the network cannot be lifted or recorded."""

    def call(*arguments: Any) -> Answer:
        with around():
            return lift(one)(*arguments)

    return recorded(call, arguments)


def _emptied(value: Any) -> Any:
    """Return a value with an empty tensor in the place of each of its own."""
    return map_tensors(lambda _: torch.empty(0), value)
