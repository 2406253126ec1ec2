"""How the convolutions of many clients are done: the fastest form on this machine, measured once and then kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from leakscope.attacks.im2col import Im2col
from leakscope.experiments.training.world import World
from leakscope.federated import State, train_clients, who_answers
from leakscope.federated.convolution import client_by_client
from leakscope.models import Functional

FORMS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "native": nullcontext,
    "by_client": client_by_client,
    "im2col": Im2col,
}
MOST_CLIENTS = 16
TIMES = 2


def choose_form(world: World, state: State, say: Callable[[str], None] = lambda _: None) -> str:
    """Return the form that trains a few of the clients fastest; 'native' where there is no convolution to do otherwise."""
    if not _has_convolutions(world):
        return "native"
    if next(iter(state.weights.values())).is_cuda:
        return "im2col"  # grouped convolutions are slow there, and client by client leaves the card idle
    answered = who_answers(world.federation, state.rounds, world.holdings.clients) or (0,)
    some = sorted(answered, key=lambda client: len(world.holdings.shares[client]))[
        : min(MOST_CLIENTS, world.federation.together)
    ]
    client = world.federation.client
    short = client if client.local is None else replace(client, local=replace(client.local, epochs=1))
    federation = replace(world.federation, client=short)
    seconds: dict[str, float] = {}
    for form in ("native", "by_client"):  # on CPU im2col lost every comparison at training
        taken = []
        for _ in range(TIMES):
            began = time.perf_counter()
            with FORMS[form]():
                train_clients(federation, world.trained, world.holdings, state, some)
            taken.append(time.perf_counter() - began)
        seconds[form] = min(taken)
    chosen = min(seconds, key=lambda form: seconds[form])
    told = ", ".join(f"{form} {value * 1e3:.0f} ms" for form, value in seconds.items())
    say(f"convolutions {chosen} ({told} for one epoch of {len(some)} clients, {torch.get_num_threads()} threads)")
    return chosen


def _has_convolutions(world: World) -> bool:
    apply = world.trained.apply
    return not isinstance(apply, Functional) or any(isinstance(layer, nn.Conv2d) for layer in apply.module.modules())
