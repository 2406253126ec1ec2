"""Adam, Adagrad and SGD with momentum, batched over trials, as in torch.optim; a resting unknown (see `Rule`) keeps its moments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakscope.attacks.optimisers.rules import (
    Memory,
    Moment,
    Rule,
    Rules,
    check_rate,
    check_turns,
    column,
    moving,
    projected,
)
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge


class _OneEvaluation(Protocol):
    """Common part of optimisers with one evaluation per iteration."""

    __slots__ = ()

    @property
    def rate(self) -> float | Tensor:
        """Return the learning rate."""

    @property
    def evaluations(self) -> int:
        """Return 1."""
        return 1

    def check(self, rules: Rules) -> None:
        """Raise for rules under which all unknowns rest at once."""
        check_turns(rules)

    def phase(self, tick: int) -> Hashable:
        """Return whether this is the first tick: all others run the same operations."""
        return tick == 0

    def numbers(self, rule: Rule, tick: int) -> tuple[float, ...]:
        """Return nothing: a step is the same at every tick."""
        del rule, tick
        return ()

    def settle(self, state: Memory, moment: Moment) -> tuple[Tensor, None]:
        """Return that every evaluation after the first ends an iteration."""
        del state
        return torch.full_like(moment.value, moment.tick > 0, dtype=torch.bool), None

    def midway(self, state: Memory, moment: Moment) -> Tensor:
        """Return False for every trial."""
        del state
        return torch.zeros_like(moment.value, dtype=torch.bool)

    def move(
        self, unknowns: Tree, state: Memory, moment: Moment, rules: Rules, knowledge: Knowledge
    ) -> tuple[Tree, None]:
        """Return the unknowns after one step."""
        new = {}
        for name in moving(unknowns, rules, moment.tick):
            value, rule, g = unknowns[name], rules[name], moment.gradient[name]
            rate = column(self.rate, value) * column(rule.factor(moment.iteration), value)
            memory = {part: tree[name] for part, tree in state.items()}
            numbers = moment.numbers.get(name) or self.numbers(rule, moment.tick)
            step = self.step(rule.signed(g, moment.iteration), memory, rate, numbers)
            new[name] = torch.sub(value, step, out=step)
        return {**unknowns, **projected(new, rules, knowledge)}, None

    def step(self, g: Tensor, memory: Tree, rate: Tensor | float, numbers: Sequence[float | Tensor]) -> Tensor:
        """Return the step of one unknown as a new tensor; its memory changes in place."""


def _zeros(unknowns: Tree) -> Tree:
    return {name: torch.zeros_like(value) for name, value in unknowns.items()}


@dataclass(frozen=True, slots=True)
class Adam(_OneEvaluation):
    """Adam (Kingma and Ba 2015) as torch.optim.Adam: one iteration is one evaluation."""

    rate: float | Tensor = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_rate("Adam", self.rate)

    def begin(self, unknowns: Tree) -> Memory:
        """Return zero moments."""
        return {"first": _zeros(unknowns), "second": _zeros(unknowns)}

    def numbers(self, rule: Rule, tick: int) -> tuple[float, ...]:
        """Return the bias corrections of the two moments."""
        b1, b2 = self.betas
        number = tick // rule.every + 1  # moves of the unknown so far
        return 1 - b1**number, (1 - b2**number) ** 0.5

    def step(self, g: Tensor, memory: Tree, rate: Tensor | float, numbers: Sequence[float | Tensor]) -> Tensor:
        """Return the step."""
        b1, b2 = self.betas
        first_scale, second_scale = numbers
        first = memory["first"].lerp_(g, 1 - b1)
        second = memory["second"].mul_(b2).addcmul_(g, g, value=1 - b2)
        root = second.sqrt().div_(second_scale).add_(self.epsilon)
        return torch.div(first, root, out=root).mul_(rate / first_scale)


@dataclass(frozen=True, slots=True)
class Adagrad(_OneEvaluation):
    """Adagrad (Duchi et al. 2011) as torch.optim.Adagrad."""

    rate: float | Tensor = 0.01
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        check_rate("Adagrad", self.rate)

    def begin(self, unknowns: Tree) -> Memory:
        """Return a zero sum of squares."""
        return {"squares": _zeros(unknowns)}

    def step(self, g: Tensor, memory: Tree, rate: Tensor | float, numbers: Sequence[float | Tensor]) -> Tensor:
        """Return the step."""
        del numbers
        squares = memory["squares"].addcmul_(g, g)
        return rate * (g / (squares.sqrt() + self.epsilon))


@dataclass(frozen=True, slots=True)
class SGD(_OneEvaluation):
    """Gradient descent with optional momentum, as torch.optim.SGD."""

    rate: float | Tensor = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_rate("SGD", self.rate)
        if not 0 <= self.momentum < 1:
            raise InputError(f"SGD.momentum must be in [0, 1), got {self.momentum}")

    def begin(self, unknowns: Tree) -> Memory:
        """Return a zero velocity, or nothing without momentum."""
        return {"velocity": _zeros(unknowns)} if self.momentum else {}

    def step(self, g: Tensor, memory: Tree, rate: Tensor | float, numbers: Sequence[float | Tensor]) -> Tensor:
        """Return the step."""
        del numbers
        return rate * (memory["velocity"].mul_(self.momentum).add_(g) if self.momentum else g)
