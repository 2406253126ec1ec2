"""How each unknown moves (rate, gradient sign, schedule, projection, interval), and the protocol of optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge

GRID = 2.0**40  # a cosine's last bit depends on the neighbours of a trial: it is rounded away


@dataclass(frozen=True, slots=True)
class Steps:
    """Multiply the rate by `factor` once for every milestone (an iteration number) already passed.

    >>> Steps((3, 5))(torch.tensor([2, 3, 7]))
    tensor([1.0000, 0.1000, 0.0100], dtype=torch.float64)
    """

    milestones: tuple[int, ...]
    factor: float = 0.1

    def __call__(self, iteration: Tensor) -> Tensor:
        """Return the factor at an iteration (a tensor of any shape)."""
        passed = sum((iteration >= m).to(torch.float64) for m in self.milestones)
        return torch.pow(torch.tensor(self.factor, dtype=torch.float64), torch.as_tensor(passed))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Multiply the rate by `factor` once every `every` iterations."""

    factor: float
    every: int = 1

    def __call__(self, iteration: Tensor) -> Tensor:
        """Return the factor at an iteration (a tensor of any shape)."""
        return torch.pow(
            torch.tensor(self.factor, dtype=torch.float64), torch.div(iteration, self.every, rounding_mode="floor")
        )


@dataclass(frozen=True, slots=True)
class Cosine:
    """Raise the rate in `warmup` iterations, then lower it to 0 at iteration `last`: `(1 + cos(pi t)) / 2`, t from 0 to 1.

    >>> Cosine(12, warmup=2)(torch.tensor([0, 1, 2, 7, 12]))
    tensor([0.5000, 1.0000, 1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """

    last: int
    warmup: int = 50

    def __call__(self, iteration: Tensor) -> Tensor:
        """Return the factor at an iteration (a tensor of any shape)."""
        warmup = min(self.warmup, self.last - 1)
        now = iteration.to(torch.float64)
        fallen = ((now - warmup) / (self.last - warmup)).clamp(0, 1)
        rising = (now + 1) / max(warmup, 1)
        factor = torch.where(now < warmup, rising, (1 + torch.cos(math.pi * fallen)) / 2)
        return torch.round(factor * GRID) / GRID


@dataclass(frozen=True, slots=True)
class SoftSign:
    """`tanh(s g) / s` in the place of the gradient g, with s from 1 at iteration 0 towards 0 at `last` (breaching's `modern`).

    Large gradients are cut like by a sign at first and are left alone at the end.
    """

    last: int

    def __call__(self, gradient: Tensor, iteration: Tensor) -> Tensor:
        """Return the gradients of T trials, softened for their iterations."""
        s = column((1 - iteration / self.last).clamp_min(1 / self.last), gradient)
        return torch.tanh(gradient * s) / s


Schedule = Callable[[Tensor], Tensor]
Projection = Callable[[Tensor, Knowledge], Tensor]


def into_box(value: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the guess clamped to the valid box of the network's input."""
    return knowledge.scaling.clamp(value, len(knowledge.input_shape))


@dataclass(frozen=True, slots=True)
class Interval:
    """Clamp an unknown to [low, high] after every step (SME's alpha to [0, 1]; a shift to its bounds)."""

    low: float
    high: float

    def __call__(self, value: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the clamped value."""
        del knowledge
        return value.clamp(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Rule:
    """How one unknown moves: `rate` times the optimiser's, (soft) sign or value of the gradient, schedule, projection.

    It moves in iterations 0, `every`, 2 `every`, ... and rests in between, where its gradient is not computed.
    """

    rate: float | Tensor = 1.0
    sign: bool | SoftSign = False
    schedule: Schedule | None = None
    project: Projection | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"Rule.every must be a whole number of at least 1, got {self.every}")

    def signed(self, gradient: Tensor, iteration: Tensor) -> Tensor:
        """Return the gradient of T trials, its sign or its soft sign."""
        if isinstance(self.sign, SoftSign):
            return self.sign(gradient, iteration)
        return gradient.sign() if self.sign else gradient

    def factor(self, iteration: Tensor) -> Tensor | float:
        """Return rate times schedule for every trial."""
        if self.schedule is None:
            return self.rate
        return self.rate * self.schedule(iteration).to(iteration.device)


Rules = Mapping[str, Rule]


def moving(unknowns: Iterable[str], rules: Rules, iteration: int) -> tuple[str, ...]:
    """Return the names of the unknowns that move in an iteration.

    >>> moving(["guess", "alpha"], {"guess": Rule(), "alpha": Rule(every=3)}, 4)
    ('guess',)
    """
    return tuple(name for name in unknowns if iteration % rules[name].every == 0)


Numbers = Mapping[str, tuple[float | Tensor, ...]]  # by unknown: inputs of a step that depend on the tick alone


@dataclass(frozen=True, slots=True)
class Moment:
    """One evaluation: gradient (of the moving unknowns) and value per trial, each trial's iteration, the tick and its `numbers`."""

    gradient: Tree
    value: Tensor
    iteration: Tensor
    tick: int
    numbers: Numbers = field(default_factory=dict)


Memory = dict[str, Any]  # of an optimiser: nested dicts of tensors with a leading trial dimension


class Optimiser(Protocol):
    """Advances T trials: `settle` reads an evaluation and says whose iteration ended, `move` takes the step; both may change `state`."""

    @property
    def evaluations(self) -> int:
        """Return the most evaluations of an iteration."""

    def check(self, rules: Rules) -> None:
        """Raise for rules this optimiser cannot follow."""

    def phase(self, tick: int) -> Hashable:
        """Return a key of the operations that a tick runs on a CUDA device: equal phases share a recording."""
        ...

    def numbers(self, rule: Rule, tick: int) -> tuple[float, ...]:
        """Return the inputs of a step that depend on the tick alone; the same count at every tick."""
        ...

    def begin(self, unknowns: Tree) -> Memory:
        """Return the state before the first evaluation."""

    def settle(self, state: Memory, moment: Moment) -> tuple[Tensor, Tensor | None]:
        """Return (iteration just ended, gradient vanished) per trial; None: never."""

    def midway(self, state: Memory, moment: Moment) -> Tensor:
        """Return which trials are inside an iteration of several evaluations; one that cannot move ends it."""

    def move(
        self, unknowns: Tree, state: Memory, moment: Moment, rules: Rules, knowledge: Knowledge
    ) -> tuple[Tree, Tensor | None]:
        """Return (new unknowns, could not move) per trial; None: all could."""


def column(value: float | Tensor, like: Tensor) -> Tensor | float:
    """Return a per-trial scalar shaped to broadcast over a T x ... tensor; a plain number unchanged."""
    if not isinstance(value, Tensor):
        return value
    value = value.to(like)
    return value.reshape(-1, *[1] * (like.ndim - 1)) if value.ndim else value


def projected(new: Tree, rules: Rules, knowledge: Knowledge) -> Tree:
    """Return the unknowns after each rule's projection."""
    return {
        name: rules[name].project(value, knowledge) if rules[name].project else value  # type: ignore[misc]
        for name, value in new.items()
    }


def check_turns(rules: Rules) -> None:
    """Raise for rules under which every unknown rests in some iteration."""
    if rules and all(rule.every > 1 for rule in rules.values()):
        turns = ", ".join(f"{name} {rule.every}" for name, rule in rules.items())
        raise InputError(
            f"Rule.every must be 1 for one unknown at least, or iterations pass without a move; got {turns}"
        )


def check_rate(name: str, rate: float | Tensor) -> None:
    """Raise for a rate that is not positive."""
    given = torch.as_tensor(rate)
    if not bool(((given > 0) & given.isfinite()).all()):
        raise InputError(f"{name}.rate must be a number above 0, got {rate}")
