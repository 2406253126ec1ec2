"""What the pieces of an attack see: one trial at one moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Observation, Round, Shares


@dataclass(frozen=True, slots=True)
class Clock:
    """The iteration a trial is in, and the trial's key, from which pieces fold whatever they draw."""

    iteration: Tensor
    key: Tensor


@dataclass(frozen=True, slots=True)
class Simulated:
    """The update that the unknowns would have caused, and what the network said on the way."""

    update: Tree
    output: Tensor
    targets: Tensor


class Simulator(Protocol):
    """Maps the unknowns of one trial to the update they would have caused in one round."""

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update."""


@dataclass(frozen=True, slots=True)
class View:
    """One trial as objectives and priors see it: unknowns, simulated and observed update, knowledge, clock.

    `shares` says what the updates are: gradients, or changes of weights.
    """

    unknowns: Tree
    simulated: Simulated
    observed: Tree
    seen: Round
    knowledge: Knowledge
    clock: Clock
    shares: Shares = Shares.GRADIENT


@dataclass(frozen=True, slots=True)
class Pieces:
    """What the engine lifts over trials; a tensor inside a piece is a per-trial setting."""

    simulate: Simulator
    objective: Objective
    priors: tuple[Prior, ...]


Objective = Callable[[View], Tensor]
Prior = Callable[[View], Tensor]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything fixed during an attack, with the trial dimension in front of every tensor."""

    observation: Observation
    knowledge: Knowledge
    pieces: Pieces
    key: Tensor
