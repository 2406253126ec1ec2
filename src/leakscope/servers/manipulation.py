"""What a dishonest server does: it chooses the weights that a client gets, and reads the update with that choice in mind.

A manipulation is an attack with two more methods, so whatever runs and scores attacks also runs it. It sees what any attacker sees:
`Observation` (with the weights it sent, `Round.before`) and `Knowledge`. It never sees the private batch. It is for measuring one's
own federation, on data that one holds.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.layer_probe import layer_behind
from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.tree import Tree, take
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds

PEELING = Peeling(draws=0)  # spear would cost minutes where peeling stalls, and holds for small batches only
FAR = 1e3  # a bias that switches every unit off or on, whatever the input


@runtime_checkable
class Manipulation(Attack, Protocol):
    """An attack that also chooses the network's weights; `run` is its readout."""

    def extend(self, model: Model) -> Model:
        """Return the network that clients get: `model` itself, or with layers of the server's own."""
        ...

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights of ONE client for the extended network, from honest weights of `model`.

        `public` are P inputs as the network sees them (after the client's scaling); `key` seeds the server's draws.
        """
        ...


@runtime_checkable
class PerClient(Manipulation, Protocol):
    """A manipulation that gives each client of a sum weights of its own, so that their updates do not mix."""

    def for_client(self, number: int) -> Manipulation:
        """Return the manipulation of one client of the sum."""
        ...


class ReadByAttack(Protocol):
    """A manipulation of the network's own weights, whose update `reader` reads: an attack as good on honest weights."""

    __slots__ = ()

    @property
    def reader(self) -> Attack:
        """Return the attack that reads the update."""
        ...

    def extend(self, model: Model) -> Model:
        """Return the network itself."""
        return model

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return what the reader makes of the update."""
        return self.reader.run(model, observation, knowledge, seeds, execution)


def dishonest_weights(
    manipulation: Manipulation, model: Model, weights: Tree, public: Tensor, seeds: Seeds
) -> tuple[Model, Tree]:
    """Return the extended network and the manipulated weights of T clients, from honest weights with leading T."""
    if public.ndim < 2 or not len(public) or tuple(public.shape[1:]) != tuple(model.input_shape):
        raise InputError(
            f"{manipulation.name} needs public inputs P x {tuple(model.input_shape)}, got {tuple(public.shape)}"
        )
    keys = random.fold(random.key(list(seeds)), "server")
    public = public.to(next(iter(weights.values())))
    each = [manipulation.weights(model, take(weights, t), public, keys[t]) for t in range(len(seeds))]
    return manipulation.extend(model), {name: torch.stack([one[name] for one in each]) for name in each[0]}


def first_relu_layer(model: Model, name: str) -> tuple[Dense, str | None]:
    """Return a network's first dense layer with bias and ReLU, and the weights of the dense layer behind it; raise without one.

    ReLU is tested on the function itself: switched off, a unit has no gradient; switched on, it has one.
    """
    entry = model.entry
    if entry is None or entry.bias is None or {entry.weight, entry.bias} & model.private:
        raise InputError(
            f"{name} changes a first dense layer with a bias, and {model.name!r} shares none; imprint can insert one"
        )
    bias, x = model.parameters[entry.bias], torch.full((1, *model.input_shape), 0.5)
    strength = []
    for shift in (-FAR, FAR):
        leaf = torch.full_like(bias, shift).requires_grad_()
        output, _ = model.apply(model.parameters | {entry.bias: leaf}, model.buffers, x.to(leaf), random.key(0))
        (slope,) = torch.autograd.grad(output.pow(2).sum(), leaf)
        strength.append(float(slope.abs().max()))
    if strength[0] > 0 or strength[1] == 0:
        raise InputError(f"{name} needs ReLU after the first dense layer; {model.name!r} has another activation there")
    return entry, layer_behind(model, entry)
