"""The settings of a federation, and its state between two rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, flat_names
from leakscope.core.types import Shares
from leakscope.defences.stack import State as Memory
from leakscope.defences.stack import begin as begin_defences
from leakscope.federated.decay import Decay
from leakscope.federated.selection import Selection, Share
from leakscope.federated.servers import Averaging, Server, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """N clients and a server; `together` clients train as one batch, which bounds memory and affects results only by rounding."""

    client: Client
    selection: Selection = field(default_factory=Share)
    server: Server = field(default_factory=Averaging)
    decay: Decay = field(default_factory=Decay)
    seed: int = 0
    together: int = 32

    def __post_init__(self) -> None:
        shared = Shares.GRADIENT if self.client.local is None else Shares.WEIGHTS
        if shared is not self.server.takes:
            wanted = "gradients: leave client.local out" if shared is Shares.WEIGHTS else "weights: give client.local"
            raise InputError(f"{name_of(self.server)} takes {wanted}")
        if self.client.rounds != 1 or self.client.server_rate:
            raise InputError("a federation has rounds of its own: leave client.rounds at 1 and server_rate at 0")
        if self.client.aggregate != 1:
            raise InputError("a federation averages its clients itself: leave client.aggregate at 1")
        if self.together < 1:
            raise InputError(f"Federation.together must be at least 1, got {self.together}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Federation.seed must be in [0, 2**63), got {self.seed}")

    def client_at(self, rounds: int) -> Client:
        """Return the client with its learning rate after so many rounds."""
        local = self.client.local
        if local is None:
            return self.client
        return replace(self.client, local=replace(local, rate=local.rate * self.decay.after(rounds)))


@dataclass(frozen=True, slots=True)
class State:
    """The state of a federation between rounds; resuming from a saved state gives the same bits.

    `weights` and `buffers` are the global model's. `private` holds each client's parameters that never leave it, and `memory` the
    state of its defences: both have leading N.
    """

    rounds: int
    weights: Tree
    buffers: Tree
    private: Tree
    memory: Memory

    __repr__ = short_repr


def equipped(federation: Federation, model: Model) -> Model:
    """Return the clients' network: the server's, with a private part if their defence adds one."""
    guard = federation.client.on_model
    return model if guard is None else guard.polarise(model)


def begin(federation: Federation, model: Model, clients: int, *, weights: Tree | None = None) -> State:
    """Return the state before the first round; `weights` are the server's (default: the model's).

    Private parameters start at the model's values; secrets of a defence on the model are drawn once per client from the seed.
    """
    client_model = equipped(federation, model)
    if client_model.private and federation.client.local is None:
        raise InputError(
            f"{model.name} has private parameters, which only local training moves: give client.local and a server of weights"
        )
    federation.selection.choose(clients, torch.tensor(0))  # raises if it asks for more clients than there are
    _check_strengths(federation.client, clients)
    first = {**client_model.parameters, **(model.parameters if weights is None else weights)}
    shared = {
        name: first[name].detach().clone() for name in client_model.parameters if name not in client_model.private
    }
    expanded = {name: value.expand(clients, *value.shape) for name, value in shared.items()}
    private = {
        name: first[name].detach().expand(clients, *first[name].shape).clone() for name in sorted(client_model.private)
    }
    guard = federation.client.on_model
    if guard is not None:
        device = next(iter(shared.values())).device
        secrets = random.fold(random.key(federation.seed, device), "secrets")
        private |= guard.draw(client_model, random.fold(secrets, torch.arange(clients, device=device)))
    return State(
        rounds=0,
        weights=shared,
        buffers={name: value.clone() for name, value in model.buffers.items()},
        private=private,
        memory=begin_defences(federation.client.defences, expanded),
    )


def _check_strengths(client: Client, clients: int) -> None:
    """Raise if a defence has strengths, but not one per client."""
    places = [(f"defences[{number}]", defence) for number, defence in enumerate(client.defences)]
    for place, defence in [*places, ("on_model", client.on_model)]:
        for name, value in flat_names(defence).items():
            if value.ndim < 1 or len(value) != clients:
                raise InputError(f"{place}.{name} must have one value per client ({clients}), got {tuple(value.shape)}")


def parameters_of(model: Model, state: State) -> Tree:
    """Return all parameters of the global model; private ones, which no server has, at the model's values."""
    return {name: state.weights.get(name, value) for name, value in model.parameters.items()}


def is_finite(state: State) -> bool:
    """Return whether the global weights are all finite."""
    return all(math.isfinite(float(value.sum())) or bool(value.isfinite().all()) for value in state.weights.values())
