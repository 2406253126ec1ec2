"""Remedies meet the attacker who knows them, all of them together: first briefly, then with the iterations of its authors.

The judge is told the labels, with a remedy and without: rules that read labels off an update fail where it is clipped or where
coordinates are missing, and an attacker may have the labels from elsewhere. What hides labels alone is not taken for a remedy.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import torch

from leakscope.attacks.attack import Attack, Matching, readable
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.objectives import without_unneeded
from leakscope.auditing.attack_runs import (
    Report,
    execution_on,
    expose_clients,
    iterations_note,
    plan_exposure,
    run_with,
)
from leakscope.auditing.limits import Budget
from leakscope.auditing.remedies import cut_off, stacked
from leakscope.auditing.suite import INFORMED, Entry
from leakscope.auditing.target import Subject
from leakscope.core.errors import InputError
from leakscope.core.tree import flat_names, map_tensors, take, tensors
from leakscope.core.types import Knowledge, Reconstruction, direction
from leakscope.defences import Defence
from leakscope.defences.stack import revealed
from leakscope.play import AttackResult, Exposure, judge, reconstruct
from leakscope.play.exposure import join

START = 0.3  # of a batch's time that does not shrink with its trials
OVERTIME = 0.1  # of the budget, before a batch that takes longer than foreseen is given up


class Trial(NamedTuple):
    """The clients that remedies are tried on: the subject, how many clients, and the seed that draws them."""

    subject: Subject
    clients: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A remedy with its clients: the attack it meets, whether that knows it, and what a division recovers (None: cannot be)."""

    name: str
    strength: str
    divided: AttackResult | None
    defence: Defence
    case: Case
    knows: bool

    @property
    def words(self) -> str:
        """Return its name and strength."""
        return self.case.words


@dataclass(slots=True)
class Met:
    """What came of some cases, by their numbers: runs, why others failed, seconds of an iteration of each batch."""

    iterations: int
    runs: dict[int, AttackResult] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    paces: list[tuple[list[int], float | None]] = field(default_factory=list)


def control_case(trial: Trial, attack: str) -> Case:
    """Return the clients without a remedy."""
    exposure = expose_clients(trial.subject, trial.clients, trial.seed).with_labels()
    return Case(exposure, entry_of(exposure, attack))


def make_candidate(trial: Trial, name: str, strength: str, defence: Defence, attack: str) -> Candidate:
    """Return the same clients with a remedy, before its attack; the division, where the first layer allows it, is done at once."""
    subject = trial.subject
    stack = stacked(subject.client.defences, defence)
    exposure = expose_clients(subject, trial.clients, trial.seed, defences=stack).with_labels()
    case = Case(exposure, entry_of(exposure, attack), f"{name} ({strength})")
    divided = [run_with(exposure, each, 0) for each in plan_exposure(exposure)[0] if each.most is None]
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    knows = bool(revealed((defence,), update))
    return Candidate(name, strength, divided[0] if divided else None, defence, case, knows)


def entry_of(exposure: Exposure, attack: str) -> Entry:
    """Return the attack as the suite has it in this exposure; told of the defences where there are any, never untold."""
    wanted = attack if exposure.informed is None else f"{attack}, {INFORMED}"
    for entry in plan_exposure(exposure)[0]:
        if entry.name in (wanted, attack) and entry.informed == (exposure.informed is not None):
            return replace(entry, name=attack)
    raise InputError(f"no {attack} that knows it can be run")


def meet(cases: Sequence[Case], iterations: int, budget: Budget, report: Report) -> Met:
    """Return what the attack makes of every case within so many iterations, batch by batch.

    A batch that is still at work when the budget is well over is given up: its cases have no run. Where a batch cannot be run, its
    cases are run one by one, and those to blame say why.
    """
    met = Met(iterations)
    queue = batches(cases)
    while queue:
        numbers = queue.pop(0)
        names = ", ".join(cases[number].words for number in numbers)
        report(f"{cases[0].entry.name}, {iterations} iterations, together: {names}")
        pace = Pace(budget.clock, until=budget.began + (1 + OVERTIME) * budget.seconds)
        try:
            results = run_together([cases[number] for number in numbers], iterations, pace)
        except OutOfTimeError:
            continue
        except InputError as error:
            if len(numbers) == 1:
                met.failed[numbers[0]] = str(error)
            queue = [[number] for number in numbers if len(numbers) > 1] + queue
            continue
        met.runs |= dict(zip(numbers, results, strict=True))
        met.paces.append((numbers, pace.seconds))
    return met


def fitting(ranked: Sequence[int], met: Met, most: int, seconds: float, *, control: bool) -> list[int]:
    """Return as many cases, from the first, as the whole attack has time for; with `control`, case 0 comes with them."""
    always = {0} if control else set()
    for number in range(len(ranked), 0, -1):
        if whole_seconds(always | set(ranked[:number]), met, most) <= seconds:
            return list(ranked[:number])
    return []


def whole_seconds(chosen: set[int], met: Met, most: int) -> float:
    """Return about how long `most` iterations of these cases take: the pace of their batches in what was met before."""
    total = 0.0
    for numbers, pace in met.paces:
        share = len(chosen & set(numbers)) / len(numbers)
        if share == 0:
            continue
        before = sum(met.runs[number].seconds for number in numbers)
        longer = any(cut_off(met.runs[number]) for number in numbers)
        whole = before * most / met.iterations if pace is None else pace * most
        total += (whole if longer else before) * (START + (1 - START) * share)
    return total


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
    reports: list[tuple[float, int]] = field(default_factory=list)

    def hear(self, progress: Progress) -> None:
        """Note where the slowest trial stands."""
        self.reports.append((self.clock(), progress.iteration))
        if self.reports[-1][0] > self.until:
            raise OutOfTimeError

    @property
    def seconds(self) -> float | None:
        """Return the seconds of one iteration, all chunks together; None where too little was heard.

        Each chunk is timed over the later half of its iterations, where nothing is traced any more.
        """
        ends = [place for place, (_, at) in enumerate(self.reports[1:], 1) if at < self.reports[place - 1][1]]
        chunks = [self.reports[a:b] for a, b in itertools.pairwise([0, *ends, len(self.reports)])]
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
    execution = replace(execution_on(joined.device), progress=None if pace is None else pace.hear)
    began = time.perf_counter()
    whole = reconstruct(joined, method, execution)
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
