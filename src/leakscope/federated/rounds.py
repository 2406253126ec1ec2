"""One round: the selected clients train as one batch (vmap), defences act on what they send, the server steps.

Clients of unequal size are padded to the largest of their group and masked; groups are sorted by size. A client's part in a round
is a function of the global model, its data and its seed for that round: `Client.observe` with that seed sees exactly what the
client sent, so any answer of a federation can be attacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.clients import Client
from leakscope.clients.client import Answer
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, take
from leakscope.core.types import LocalTraining
from leakscope.defences import Defence
from leakscope.defences.on_model import Polarisation
from leakscope.defences.stack import State as Memory
from leakscope.federated.federation import Federation, State, equipped
from leakscope.federated.holdings import Holdings
from leakscope.federated.servers import add_weighted, average_buffers
from leakscope.federated.traced import Around, answering
from leakscope.learning.local import draw_order


@dataclass(frozen=True, slots=True)
class Form:
    """How a group of clients is computed; affects results only by rounding.

    `around` is a context for training (another way to compute convolutions), `split` trains one part of the clients per core.
    `traced` runs a flat graph, or a recording on a GPU, after enough similar groups; not where it would unroll a loop over
    clients.
    """

    around: Around = nullcontext
    split: bool = False
    traced: bool = False


NATIVE = Form()


@dataclass(frozen=True, slots=True)
class Played:
    """The events of a round: who answered, with how many examples, and the factor of the learning rate."""

    round: int
    answered: tuple[int, ...]
    examples: int
    decay: float


def client_seeds(federation: Federation, rounds: int, clients: Sequence[int]) -> list[int]:
    """Return each client's seed for the round after `rounds` others."""
    key = random.fold(random.fold(random.key(federation.seed), "federation"), rounds)
    seeds: list[int] = random.fold(key, torch.tensor(list(clients))).tolist()
    return seeds


def who_answers(federation: Federation, rounds: int, clients: int) -> tuple[int, ...]:
    """Return the clients that answer in the round after `rounds` others."""
    key = random.fold(random.fold(random.key(federation.seed), "selection"), rounds)
    return federation.selection.choose(clients, key)


def play_round(
    federation: Federation,
    model: Model,
    holdings: Holdings,
    state: State,
    *,
    form: Form = NATIVE,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[State, Played]:
    """Return the state after one more round, and its events; `progress` gets (clients done, clients of the round) after each group."""
    answered = who_answers(federation, state.rounds, holdings.clients)
    counts = holdings.counts
    decay = federation.decay.after(state.rounds)
    after, done = state, 0
    turns = [[client] for client in answered] if federation.server.in_turn else [list(answered)] if answered else []
    for turn in turns:
        shares = dict(zip(turn, federation.server.weigh(counts[turn]).tolist(), strict=True))
        total: Tree | None = None
        buffers: list[tuple[Tensor, Tree]] = []
        start = after
        groups = list(groups_of(turn, counts, federation.together, torch.get_num_threads() if form.split else 1))
        for group, answer in train_groups(federation, model, holdings, start, groups, form=form):
            share = torch.tensor([shares[client] for client in group], dtype=torch.float64, device=_device(start))
            total = add_weighted(total, share, federation.server.read(start.weights, answer.update))
            buffers.append((share, answer.buffers))
            after = _with_private(after, group, answer)
            done += len(group)
            progress(done, len(answered))
        if total is not None:
            moved = federation.server.step(start.weights, total, decay)
            weights = {name: moved[name].to(value.dtype) for name, value in start.weights.items()}
            after = replace(after, weights=weights, buffers=average_buffers(start.buffers, buffers))
    played = Played(state.rounds + 1, answered, int(counts[list(answered)].sum()), decay)
    return replace(after, rounds=state.rounds + 1), played


def train_groups(
    federation: Federation,
    model: Model,
    holdings: Holdings,
    state: State,
    groups: Sequence[Sequence[int]],
    *,
    form: Form = NATIVE,
) -> Iterator[tuple[Sequence[int], Answer]]:
    """Yield each group of clients with its answers, in order; a split form runs as many groups at a time as torch has threads."""

    def prepared(group: Sequence[int]) -> Callable[[], Answer]:
        return _prepared(federation, model, holdings, state, group, form)

    threads = torch.get_num_threads()
    if not form.split or threads == 1:
        yield from ((group, prepared(group)()) for group in groups)
        return
    with ThreadPoolExecutor(threads, "leakscope", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        torch.set_num_threads(1)
        try:
            for first in range(0, len(groups), threads):  # at most one group of answers per core at a time
                some = groups[first : first + threads]
                answers = pool.map(lambda call: call(), [prepared(group) for group in some])
                yield from zip(some, answers, strict=True)
        finally:
            torch.set_num_threads(threads)


def _prepared(
    federation: Federation, model: Model, holdings: Holdings, state: State, clients: Sequence[int], form: Form
) -> Callable[[], Answer]:
    """Return a function that computes the answers of some clients; their orders are already drawn."""
    client, device, held = federation.client_at(state.rounds), _device(state), equipped(federation, model)
    chosen = torch.tensor(list(clients))
    batch = holdings.batch(clients, device)
    seeds = client_seeds(federation, state.rounds, clients)
    keys = random.fold(random.key(seeds, device=device), "client")
    order = None if client.local is None else trimmed(draw_orders(client.local, holdings.counts[chosen], keys))
    shared = {name: value.expand(len(clients), *value.shape) for name, value in state.weights.items()}
    private = {name: value[chosen.to(value.device)] for name, value in state.private.items()}
    weights = {name: shared[name] if name in shared else private[name] for name in held.parameters}
    buffers = {name: value.expand(len(clients), *value.shape) for name, value in state.buffers.items()}
    defences, guard, memory = take((client.defences, client.on_model, state.memory), chosen.to(device))
    arguments = (defences, guard, memory, weights, buffers, batch.inputs, batch.labels, batch.mask, keys, order)
    one = _one(client, held)
    if form.traced and federation.decay.every is None:  # every new rate would be traced again
        return answering(one, client, model, arguments, 1 if order is None else len(order), form.around)

    def call() -> Answer:
        with form.around():
            return lift(one)(*arguments)

    return call


def draw_orders(local: LocalTraining, counts: Tensor, keys: Tensor) -> Tensor:
    """Return which example each slot of each step takes, clients x steps x B, -1 if none; independent of padding."""
    sizes = counts.tolist()
    orders: dict[int, Tensor] = {}
    for size in sorted(set(sizes)):
        places = [place for place, other in enumerate(sizes) if other == size]
        orders |= dict(zip(places, draw_order(local, size, keys[places]), strict=True))
    steps, width = (max(order.shape[d] for order in orders.values()) for d in (0, 1))
    padded = (
        F.pad(orders[place], (0, width - orders[place].shape[1], 0, steps - orders[place].shape[0]), value=-1)
        for place in range(len(sizes))
    )
    return torch.stack(list(padded))


def trimmed(order: Tensor) -> tuple[Tensor, ...]:
    """Return the order step by step, each as wide as the fullest batch of any client."""
    widths = (order >= 0).sum(-1).amax(0).clamp_min(1).tolist()
    return tuple(order[:, step, :width] for step, width in enumerate(widths))


def _one(client: Client, model: Model) -> Callable[..., Answer]:
    """Return the answer of one client as a function of its tensors alone."""

    def one(
        defences: tuple[Defence, ...], guard: Polarisation | None, memory: Memory, weights: Tree, buffers: Tree,
        x: Tensor, y: Tensor, mask: Tensor, key: Tensor, order: tuple[Tensor, ...] | None,
    ) -> Answer:  # fmt: skip
        return client.answer(model, defences, memory, weights, buffers, x, y, mask, key, order, guard)

    return one


def groups_of(clients: Sequence[int], counts: Tensor, together: int, parts: int = 1) -> Iterator[list[int]]:
    """Yield the clients by increasing size in groups of `together`; a multiple of `parts` groups if there are enough."""
    by_size = sorted(clients, key=lambda client: (int(counts[client]), client))
    groups = -(-len(by_size) // together)
    each = -(-len(by_size) // (-(-groups // parts) * parts)) if parts > 1 else together
    for first in range(0, len(by_size), each):
        yield by_size[first : first + each]


def _with_private(state: State, clients: Sequence[int], answer: Answer) -> State:
    """Return the state with what these clients keep: private parameters and the state of defences."""
    if not state.private and not any(state.memory):
        return state
    index = torch.tensor(list(clients), device=_device(state))
    private = {name: value.index_copy(0, index, answer.weights[name]) for name, value in state.private.items()}
    memory = tuple(
        {name: value.index_copy(0, index, new[name]) for name, value in old.items()}
        for old, new in zip(state.memory, answer.state, strict=True)
    )
    return replace(state, private=private, memory=memory)


def _device(state: State) -> torch.device:
    return next(iter(state.weights.values())).device
