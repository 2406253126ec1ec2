"""The engine's data: the problem of a chunk, its state, when trials stop, and what is recorded.

Every tensor of the state has a leading trial dimension, so compaction, padding, splitting and saving are one map over the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakscope.attacks.optimisers.rules import Memory, Optimiser, Rules
from leakscope.attacks.priors import GUESS
from leakscope.attacks.view import Facts
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree

TRACE_POINTS = 256
LAST = 10  # final iterations that a trace always holds, and a film on request: has the attack settled?
SNAPSHOTS = 16


@dataclass(frozen=True, slots=True)
class Stop:
    """When a trial ends: mismatch under `threshold`, `iterations` done, or no relative gain of `gain` in `patience` iterations.

    `film_end` also keeps the guess at each of the last `LAST` possible iterations and the one before them.
    """

    iterations: int = 300
    threshold: float = 0.0
    patience: int | None = None
    gain: float = 1e-3
    film_end: bool = False

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InputError(f"Stop.iterations must be at least 1, got {self.iterations}")
        if not self.threshold >= 0:
            raise InputError(f"Stop.threshold must not be below 0, got {self.threshold}")
        if self.patience is not None and self.patience < 1:
            raise InputError(f"Stop.patience must be at least 1, got {self.patience}")


Value = Callable[[Tree], Tensor]  # the objective of every trial at some unknowns


class Moves(Protocol):
    """A search between ticks that no gradient leads, such as one over the order of tokens."""

    def due(self, tick: int) -> bool:
        """Return whether it moves after so many ticks."""
        ...

    def __call__(self, unknowns: Tree, facts: Facts, tick: int, value: Value) -> Tree:
        """Return new unknowns of every trial."""
        ...


@dataclass(frozen=True, slots=True)
class Problem:
    """What one chunk optimises; every tensor has a leading trial dimension."""

    unknowns: Tree
    facts: Facts
    optimiser: Optimiser
    rules: Rules
    moves: Moves | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: trials in all, done, converged, diverged; iteration of the slowest; a note while waiting."""

    total: int
    done: int
    converged: int
    diverged: int
    iteration: int
    evaluations: int
    note: str = ""


@dataclass(slots=True)
class State:
    """The changing part of a chunk; every tensor has a leading lane dimension. `lane` is -1 for padding."""

    lane: Tensor
    unknowns: Tree
    last: Tree
    memory: Memory
    iteration: Tensor
    evaluations: Tensor
    outcome: Tensor
    mismatch: Tensor
    best: Tensor
    best_at: Tensor
    trace: Tensor
    courses: Tree
    snapshots: Tensor


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine's result for every trial, on the CPU; `courses` trace the scalar unknowns as `trace` does the mismatch."""

    unknowns: Tree
    mismatch: Tensor
    iteration: Tensor
    evaluations: Tensor
    outcome: Tensor
    trace: Tensor
    trace_at: Tensor
    courses: Tree
    snapshots: Tensor
    snapshots_at: Tensor


def single_numbers(unknowns: Tree) -> Tree:
    """Return the unknowns other than the guess that are one number per trial, such as SME's alpha."""
    return {name: value for name, value in unknowns.items() if name != GUESS and value.ndim == 1}


def spaced(last: int, points: int) -> list[int]:
    """Return at most `points` iterations in 0..last: the first ones all, then log-spaced.

    >>> spaced(300, 8)
    [0, 1, 3, 7, 17, 45, 116, 300]
    """
    if last + 1 <= points:
        return list(range(last + 1))
    low, dense = 1, [0]
    for number in range(points, 0, -1):
        marks = {round(low * (last / low) ** (i / (number - 1))) for i in range(number)} if number > 1 else {last}
        if len(marks) + len(dense) <= points:
            chosen = sorted(set(dense) | marks)
            break
    free = points - len(chosen)
    gaps = [i for i in range(last) if i not in set(chosen)][:free]
    return sorted([*chosen, *gaps])


@dataclass(frozen=True, slots=True)
class Recorder:
    """The slots of `trace` and `snapshots` for each iteration."""

    stop: Stop
    trace_at: list[int] = field(init=False)
    snapshots_at: list[int] = field(init=False)
    recorded_at: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        last = self.stop.iterations
        end = range(max(last - LAST, 0), last + 1)
        filmed = end if self.stop.film_end else ()
        object.__setattr__(self, "trace_at", sorted({*spaced(last, TRACE_POINTS), *end}))
        object.__setattr__(self, "snapshots_at", sorted({*spaced(last, SNAPSHOTS), *filmed}))
        object.__setattr__(self, "recorded_at", frozenset(self.trace_at + self.snapshots_at))

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the iterations recorded in `trace` and in `snapshots` as tensors on a device."""
        return torch.tensor(self.trace_at, device=device), torch.tensor(self.snapshots_at, device=device)

    def write(self, state: State, boundary: Tensor, marks: tuple[Tensor, Tensor]) -> None:
        """Store mismatch, scalars and guess of trials at a recorded iteration; `marks` (see `on`) avoid a synchronisation."""
        on_host = None if boundary.is_cuda else state.iteration.tolist()
        if on_host is not None and self.recorded_at.isdisjoint(on_host):
            return
        along = [(state.trace, state.mismatch)]
        along += [(course, state.unknowns[name]) for name, course in state.courses.items()]
        lanes = torch.arange(len(state.lane), device=state.lane.device)
        parts = ((self.trace_at, along), (self.snapshots_at, [(state.snapshots, state.unknowns[GUESS])]))
        for at, (iterations, places) in zip(marks, parts, strict=True):
            if on_host is not None and not any(number in iterations for number in on_host):
                continue
            slot = torch.searchsorted(at, state.iteration).clamp_max(len(at) - 1)
            written = boundary & (at[slot] == state.iteration)
            for place, source in places:
                mask = written.reshape(-1, *[1] * (source.ndim - 1))
                place[lanes, slot] = torch.where(mask, source.to(place.dtype), place[lanes, slot])
