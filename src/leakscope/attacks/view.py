"""What the components of an attack see: one trial at one iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from leakscope.core.model import Dense, Model, Norm
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Observation, Round, Shares


@dataclass(frozen=True, slots=True)
class Clock:
    """The iteration of a trial, and its key, from which components fold what they draw."""

    iteration: Tensor
    key: Tensor


@dataclass(frozen=True, slots=True)
class Entering:
    """The input of a layer at the guess, N x ..., and which examples of it are real."""

    layer: Norm | Dense
    value: Tensor
    present: Tensor


@dataclass(frozen=True, slots=True)
class Simulated:
    """The update that the unknowns would have caused, and the network's output.

    `entering` are inputs of layers, from `Watched`; `members` are the simulations of a group, from `InGroup`.
    """

    update: Tree
    output: Tensor
    targets: Tensor
    entering: tuple[Entering, ...] = ()
    members: tuple[Simulated, ...] = ()


class Simulator(Protocol):
    """Maps the unknowns of one trial to the update they would have caused in one round."""

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update."""


@dataclass(frozen=True, slots=True)
class View:
    """One trial as seen by objectives and priors; `shares` says whether updates are gradients or weight changes."""

    unknowns: Tree
    simulated: Simulated
    observed: Tree
    seen: Round
    knowledge: Knowledge
    clock: Clock
    shares: Shares = Shares.GRADIENT


@dataclass(frozen=True, slots=True)
class Components:
    """The components that the engine lifts over trials; a tensor inside one is a per-trial setting."""

    simulate: Simulator
    objective: Objective
    priors: tuple[Prior, ...]


Objective = Callable[[View], Tensor]
Prior = Callable[[View], Tensor]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything fixed during an attack; every tensor has a leading trial dimension."""

    observation: Observation
    knowledge: Knowledge
    components: Components
    key: Tensor
