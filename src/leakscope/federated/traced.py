"""The answers of a group of clients as a flat graph of tensor operations, traced once and reused in later rounds.

With small clients the transforms (vmap, grad) cost as much as the arithmetic, and threads share one Python. The graph runs the
same operations without them, so the bits stay the same; on a CUDA device it is a recording (`kernels.recordings`). Groups share a
graph (`kernels.graph_cache`) if network, context, settings, defences and shapes are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.clients.client import Answer
from leakscope.core.model import Model
from leakscope.core.tree import fill, flattened, lift, map_tensors, tensors
from leakscope.kernels.graph_cache import Flat, flat_graph, graph_at_call, graph_key
from leakscope.kernels.graph_cache import forget as forget_graphs
from leakscope.kernels.recordings import recorded
from leakscope.learning.losses import loss_of

PURPOSE = "federation"
TRACE_AFTER = 40  # similar groups after which tracing pays (0.3 s per local step of a LeNet, 1 to 4 s of a ResNet)
RECORD_AFTER = 1  # groups on a CUDA device: recording costs three calls, replaying a fraction of one
MOST_STEPS = 16  # tracing more local steps takes longer than most trainings
MOST_STEPS_ON_CUDA = 1_000  # hundreds of kernels each, all part of the recording

Around = Callable[[], AbstractContextManager[object]]


def answering(
    one: Callable[..., Answer], client: Client, model: Model, arguments: tuple[object, ...], steps: int, around: Around
) -> Callable[[], Answer]:
    """Return a function that computes the answers of a group: `one` lifted over its clients, or its graph after enough similar groups.

    `one` answers for one client and must depend only on `client`, `model` and its arguments. Tracing happens in this call; the
    returned function may run in any thread.
    """

    def transformed(*arguments: object) -> Answer:
        with around():
            return lift(one)(*arguments)

    flat = list(tensors(arguments))
    on_cuda = all(t.is_cuda for t in flat)
    if steps > (MOST_STEPS_ON_CUDA if on_cuda else MOST_STEPS):
        return lambda: transformed(*arguments)
    constants = (loss_of(client.loss), client.local, client.scaling, client.on_data)
    graph = graph_at_call(
        graph_key(PURPOSE, same=(model, around), constants=constants, inputs=arguments, flat=flat),
        record_after=RECORD_AFTER if on_cuda else None,
        trace_after=None if on_cuda else TRACE_AFTER,
        record=lambda: recorded(transformed, arguments),
        trace=lambda: _traced(one, arguments, around),
    )
    return lambda: (graph or transformed)(*arguments)


def forget() -> None:
    """Drop all groups and graphs, to free the memory of a finished training."""
    forget_graphs(PURPOSE)


def _traced(one: Callable[..., Answer], arguments: tuple[object, ...], around: Around) -> Callable[..., Answer] | None:
    """Return the graph; None if it cannot be lifted or traced (clients then train without it and raise their own errors)."""
    flat_one, shape = flattened(one, arguments)
    lifted = torch.func.vmap(flat_one, randomness="error")

    def call(*flat: Tensor) -> Flat:
        with around():
            outputs: Flat = lifted(flat)
            return outputs

    try:
        with torch.no_grad():
            graph = flat_graph(call, tensors(arguments), by_run=False)
    except Exception:  # the tracer fails in many ways, with assertions too
        return None
    empty: Answer = map_tensors(lambda _: torch.empty(0), shape[0])

    def play(*arguments: object) -> Answer:
        with torch.no_grad():
            return fill(empty, list(graph(*tensors(arguments))))

    return play
