"""One attack on several exposures at once: the same clients under many remedies are the trials of one batch.

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

from leakscope.attacks.attack import Attack, Matching, readable
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.objectives import without_unneeded
from leakscope.auditing.attack_runs import EXECUTION, iterations_note
from leakscope.auditing.suite import Entry
from leakscope.core.tree import flat_names, map_tensors, take, tensors
from leakscope.core.types import Knowledge, Reconstruction
from leakscope.play import AttackResult, Exposure, judge
from leakscope.play.exposure import join

V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A exposure, the attack of the suite that meets it, and what the exposure is in words."""

    exposure: Exposure
    entry: Entry
    words: str = "no remedy"

    @property
    def trials(self) -> int:
        """Return how many clients it has."""
        return self.exposure.batch.trials


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


def _slope(reports: Sequence[tuple[float, int]]) -> float | None:
    """Return seconds for each iteration from the middle one to the last; None where nothing moved."""
    end, last = reports[-1]
    began, first = next(each for each in reports if each[1] >= last / 2)
    return (end - began) / (last - first) if last > first else None


def batches(cases: Sequence[Case]) -> list[list[int]]:
    """Return which cases run as one batch, by their numbers; in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        attack = case.entry.make(1)
        # settings with a value for each trial belong to the trials of one exposure
        alone = f" {number}" if any(True for _ in tensors(attack)) else ""
        groups.setdefault(f"{readable(attack)} {_kind(_needed(attack, case))}{alone}", []).append(number)
    return list(groups.values())


def run_together(cases: Sequence[Case], iterations: int, pace: Pace | None = None) -> list[AttackResult]:
    """Return the run of each case of ONE batch (see `batches`), with so many iterations at most.

    The seconds of a run are its share of what the batch took.
    """
    method, first = cases[0].entry.make(iterations), cases[0]
    joined = join([replace(case.exposure, knowledge=_needed(method, case), informed=None) for case in cases])
    execution = EXECUTION if pace is None else replace(EXECUTION, progress=pace.hear)
    began = time.perf_counter()
    whole = method.run(joined.model, joined.observation, joined.knowledge, list(joined.seeds), execution)
    seconds = (time.perf_counter() - began) / len(cases)
    note = iterations_note(first.entry, iterations)
    return [
        judge(case.exposure.batch, part, name=case.entry.name, note=note, seconds=seconds)
        for case, part in zip(cases, _parts(whole, [case.trials for case in cases]), strict=True)
    ]


def _needed(attack: Attack, case: Case) -> Knowledge:
    """Return what is known, without the facts that this attack has no use for: they would keep exposures apart for nothing.

    Labels are read off with all that is known before, so they are facts here.
    """
    known = case.exposure.known(informed=case.entry.informed)
    if not isinstance(attack, Matching) or known.labels is None:
        return known
    return without_unneeded(attack.objective, known)


def _kind(known: Knowledge) -> str:
    """Return the text of what is known, without its numbers for single trials."""
    shapes = {name: tuple(value.shape[1:]) for name, value in flat_names(known).items()}
    plain = map_tensors(lambda value: value.new_zeros(0), known)
    return f"{shapes} {plain}"


def _parts(whole: Reconstruction, widths: Sequence[int]) -> list[Reconstruction]:
    """Return the trials of each case."""
    ends = torch.tensor(list(widths)).cumsum(0).tolist()
    return [take(whole, slice(end - width, end)) for end, width in zip(ends, widths, strict=True)]
