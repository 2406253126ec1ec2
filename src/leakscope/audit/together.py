"""One attack on several worlds at once: the same clients under many remedies are the trials of one batch.

Most of what a short evaluation takes is its start, and trials of a batch share it. A trial's run does not depend on its
neighbours, to the bit, so nothing but time changes. Worlds share a batch where the attack that knows them is the same one: it
compares the same way, and needs the same kinds of facts, each with a value for every trial.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, Matching, readable
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.objectives import without_unneeded
from leakscope.audit.playing import World, known_to, scored
from leakscope.audit.suite import Entry
from leakscope.core.tree import flat_names, map_tensors, take, tensors
from leakscope.core.types import Knowledge, Reconstruction
from leakscope.play.story import AttackRun

V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A world, the attack of the suite that meets it, and what the world is in words."""

    world: World
    entry: Entry
    words: str = "no remedy"

    @property
    def trials(self) -> int:
        """Return how many clients it has."""
        return self.world.batch.trials


class OutOfTimeError(Exception):
    """A batch ran past its deadline; what it had so far is lost."""


@dataclass(slots=True)
class Pace:
    """How fast a batch runs: (seconds, iteration) as the engine tells them; `clock` tells the time, `until` ends the run."""

    clock: Callable[[], float] = time.monotonic
    until: float = math.inf
    told: list[tuple[float, int]] = field(default_factory=list)

    def hear(self, progress: Progress) -> None:
        """Note where the slowest trial stands."""
        self.told.append((self.clock(), progress.iteration))
        if self.told[-1][0] > self.until:
            raise OutOfTimeError

    @property
    def seconds(self) -> float | None:
        """Return the seconds of one iteration, all chunks together; None where too little was heard.

        Each chunk is timed over the later half of its iterations, where nothing is traced any more.
        """
        ends = [place for place, (_, at) in enumerate(self.told[1:], 1) if at < self.told[place - 1][1]]
        chunks = [self.told[a:b] for a, b in itertools.pairwise([0, *ends, len(self.told)])]
        each = [_slope(chunk) for chunk in chunks if chunk]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * len(each) / len(known) if known else None


def _slope(told: Sequence[tuple[float, int]]) -> float | None:
    """Return seconds for each iteration from the middle one to the last; None where nothing moved."""
    end, last = told[-1]
    began, first = next(each for each in told if each[1] >= last / 2)
    return (end - began) / (last - first) if last > first else None


def batches(cases: Sequence[Case]) -> list[list[int]]:
    """Return which cases run as one batch, by their numbers; in the order of the first of each."""
    found: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        attack = case.entry.make(1)
        alone = f" {number}" if any(True for _ in tensors(attack)) else ""  # settings for the trials of its own world
        found.setdefault(f"{readable(attack)} {_kind(_needed(attack, case))}{alone}", []).append(number)
    return list(found.values())


def run_together(cases: Sequence[Case], iterations: int, pace: Pace | None = None) -> list[AttackRun]:
    """Return the run of each case of ONE batch (see `batches`), with so many iterations at most.

    The seconds of a run are its share of what the batch took.
    """
    attack, first = cases[0].entry.make(iterations), cases[0]
    known = [_needed(attack, case) for case in cases]
    observation = _joined([case.world.observation for case in cases])
    seeds = [seed for case in cases for seed in case.world.seeds]
    execution = first.world.execution if pace is None else replace(first.world.execution, progress=pace.hear)
    began = time.perf_counter()
    made = attack.run(first.world.subject.model, observation, _joined(known), seeds, execution)
    seconds = (time.perf_counter() - began) / len(cases)
    note = f"{iterations} iterations at most; its authors run {first.entry.most}"
    return [
        scored(case.entry.name, note, case.world.batch, part, seconds)
        for case, part in zip(cases, _parts(made, [case.trials for case in cases]), strict=True)
    ]


def _needed(attack: Attack, case: Case) -> Knowledge:
    """Return what is known, without the facts that this attack has no use for: they would keep worlds apart for nothing.

    Labels are read off with all that is known before, so they are facts here.
    """
    known = known_to(case.world, case.entry)
    if not isinstance(attack, Matching) or known.labels is None:
        return known
    return without_unneeded(attack.objective, known)


def _kind(known: Knowledge) -> str:
    """Return the text of what is known, without its numbers for single trials."""
    shapes = {name: tuple(value.shape[1:]) for name, value in flat_names(known).items()}
    plain = map_tensors(lambda value: value.new_zeros(0), known)
    return f"{shapes} {plain}"


def _joined(values: Sequence[V]) -> V:
    """Return one value with the trials of all."""

    def join(*parts: Tensor) -> Tensor:
        return torch.cat(parts)

    return map_tensors(join, values[0], *values[1:])


def _parts(made: Reconstruction, widths: Sequence[int]) -> list[Reconstruction]:
    """Return the trials of each case."""
    ends = torch.tensor(list(widths)).cumsum(0).tolist()
    return [take(made, slice(end - width, end)) for end, width in zip(ends, widths, strict=True)]
