"""Several guesses of one trial that pull each other together (GradInversion's group consistency).

The first member is the unknown `guess`, the others are the unknown `group`, so a trial stays one lane of the engine. The
reconstruction is the plain mean of the group; the paper aligns its members first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS
from leakscope.attacks.simulate import OneGradient
from leakscope.attacks.starts import Normal, Start
from leakscope.attacks.view import Clock, Objective, Simulated, Simulator, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Round

GROUP = "group"


def members(unknowns: Tree) -> list[Tensor]:
    """Return the guesses of ONE trial's group."""
    return [unknowns[GUESS], *unknowns[GROUP].unbind(0)] if GROUP in unknowns else [unknowns[GUESS]]


def mean_member(unknowns: Tree, knowledge: Knowledge) -> Tree:
    """Return the unknowns of T trials with the mean of each group as their guess."""
    del knowledge
    total = unknowns[GUESS] + unknowns[GROUP].sum(1)
    return {**unknowns, GUESS: total / (1 + unknowns[GROUP].shape[1])}


@dataclass(frozen=True, slots=True)
class Others:
    """The start of the members other than the first: `number` draws of `start`."""

    number: int
    start: Start = field(default_factory=Normal)

    def __post_init__(self) -> None:
        if self.number < 1:
            raise InputError(f"a group needs at least 2 members, got {self.number + 1}")

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return their guesses."""
        return torch.stack([self.start(random.fold(key, place), knowledge) for place in range(self.number)])


@dataclass(frozen=True, slots=True)
class InGroup:
    """The inner simulator of every member; update and output are those of the first."""

    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated updates."""
        every = tuple(
            self.inner(model, {**unknowns, GUESS: guess}, seen, knowledge, _own(clock, place))
            for place, guess in enumerate(members(unknowns))
        )
        return replace(every[0], members=every)


@dataclass(frozen=True, slots=True)
class EachMember:
    """The mean of an objective or a prior over the members of the group."""

    inner: Objective = field(default_factory=Match)

    needs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, view: View) -> Tensor:
        """Return the mean value."""
        guesses = members(view.unknowns)
        every = view.simulated.members or (view.simulated,) * len(guesses)
        views = [
            replace(view, unknowns={**view.unknowns, GUESS: guess}, simulated=one, clock=_own(view.clock, place))
            for place, (guess, one) in enumerate(zip(guesses, every, strict=True))
        ]
        return torch.stack([self.inner(each) for each in views]).mean()


@dataclass(frozen=True, slots=True)
class GroupConsistency:
    """`weight * mean over members of mean (x - mean of the group)^2`; 0 for a trial without a group."""

    weight: float | Tensor = 0.01

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        every = torch.stack(members(view.unknowns))
        return self.weight * (every - every.mean(0)).square().mean()


def _own(clock: Clock, place: int) -> Clock:
    """Return the clock of a member, with a key of its own."""
    return clock if place == 0 else replace(clock, key=random.fold(clock.key, place))
