"""Remedies attacked in batches by the informed attacker, who also knows the labels: hiding labels alone is not a remedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch

from leakscope.attacks.attack import Attack, Matching, readable
from leakscope.attacks.aware import aware
from leakscope.attacks.objectives import without_unneeded
from leakscope.auditing.attack_runs import expose_clients, plan_exposure, run_with
from leakscope.auditing.attempts import execution_on, iterations_note
from leakscope.auditing.changes import FEWEST, Change
from leakscope.auditing.limits import Budget, Pace
from leakscope.auditing.remedies import cut_off, stacked
from leakscope.auditing.suite import INFORMED, Entry, knows_more
from leakscope.auditing.target import Subject
from leakscope.core.errors import InputError, is_failure
from leakscope.core.progress import Reporter
from leakscope.core.tree import flat_names, map_tensors, take, tensors
from leakscope.core.types import Knowledge, Reconstruction, direction
from leakscope.defences import Defence
from leakscope.defences.stack import revealed
from leakscope.play import AttackResult, Exposure, judge, reconstruct
from leakscope.play.exposure import join

START = 0.3  # share of a batch's time that does not shrink with its trials


class Trial(NamedTuple):
    """The clients that remedies are tried on."""

    subject: Subject
    clients: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A remedy and its clients."""

    name: str
    strength: str
    exact: tuple[AttackResult, ...]  # results of the attacks without iterations
    defence: Defence | Change
    case: Case
    knows: bool  # whether the attack knows the defence

    @property
    def words(self) -> str:
        """Return the name and strength."""
        return self.case.words


@dataclass(slots=True)
class Met:
    """Results by case number: runs, reasons of failures, and the seconds per iteration of each batch."""

    iterations: int
    runs: dict[int, AttackResult] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    paces: list[tuple[list[int], float | None]] = field(default_factory=list)


def control_case(trial: Trial, attack: str) -> Case:
    """Return the clients without a remedy; labels are known, because label rules fail on clipped or masked updates."""
    exposure = expose_clients(trial.subject, trial.clients, trial.seed).with_labels()
    return Case(exposure, entry_of(exposure, attack))


def make_candidate(
    trial: Trial, name: str, strength: str, defence: Defence | Change, attack: str, budget: Budget | None = None
) -> Candidate:
    """Return the clients with a remedy; the attacks without iterations are run at once."""
    subject = trial.subject
    if isinstance(defence, Change):
        changed = defence.apply(subject)
        costly = defence.simulates_steps or changed.behind > subject.behind  # as few clients as give an interval
        clients = min(trial.clients, FEWEST) if costly else trial.clients
        exposure = expose_clients(changed, clients, trial.seed).with_labels()
    else:
        stack = stacked(subject.client.defences, defence)
        exposure = expose_clients(subject, trial.clients, trial.seed, defences=stack).with_labels()
    entry = entry_of(exposure, attack)
    if isinstance(defence, Change) and defence.simulates_steps:
        entry = replace(entry, make=partial(_simulating, entry.make, exposure.known(informed=entry.informed)))
    case = Case(exposure, entry, f"{name} ({strength})")
    exact = tuple(
        run for each in plan_exposure(exposure)[0] if each.most is None for run in _exact(exposure, each, budget)
    )
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    knows = isinstance(defence, Change) or bool(revealed((defence,), update))
    return Candidate(name, strength, exact, defence, case, knows)


def _exact(exposure: Exposure, entry: Entry, budget: Budget | None) -> list[AttackResult]:
    """Return the result of an attack without iterations; [] if it cannot read these updates. One that fails or is cut is an error."""
    pace = None if budget is None else Pace(budget.clock, until=budget.end)
    try:
        run = run_with(exposure, entry, 0, pace)
    except InputError as error:
        if is_failure(error):
            raise
        return []
    if pace is not None and pace.ended:  # a remedy must not look good because an attack was stopped
        raise InputError(f"there was no time left for {entry.name}")
    return [run]


def _simulating(make: Callable[[int], Attack], knowledge: Knowledge, iterations: int) -> Attack:
    """Return the attack that simulates the client's local steps."""
    attack = make(iterations)
    return aware(attack, knowledge, simulate=True) if isinstance(attack, Matching) else attack


def entry_of(exposure: Exposure, attack: str) -> Entry:
    """Return the attack from this exposure's suite; its informed variant if there is more to know."""
    informed = knows_more(exposure.knowledge, exposure.informed)
    wanted = f"{attack}, {INFORMED}" if informed else attack
    for entry in plan_exposure(exposure)[0]:
        if entry.name in (wanted, attack) and entry.informed == informed:
            return replace(entry, name=attack)
    raise InputError(f"no {attack} that knows it can be run")


def meet(cases: Sequence[Case], iterations: int, budget: Budget, report: Reporter) -> Met:
    """Return the attack's results on every case, batch by batch."""
    met = Met(iterations)
    queue = batches(cases)
    while queue:
        numbers = queue.pop(0)
        names = ", ".join(cases[number].words for number in numbers)
        done = len(cases) - len(numbers) - sum(map(len, queue))
        message = f"{cases[0].entry.name}, {iterations} iterations, together: {names}"
        report("remedies", message, done=done, total=len(cases))
        pace = Pace(budget.clock, until=budget.end)
        try:
            results = run_together([cases[number] for number in numbers], iterations, pace)
        except InputError as error:  # then run its cases one by one, so that only those at fault fail
            if len(numbers) == 1:
                met.failed[numbers[0]] = str(error)
            queue = [[number] for number in numbers if len(numbers) > 1] + queue
            continue
        if pace.ended:  # its cases have no run: a part of the iterations judges nothing
            continue
        met.runs |= dict(zip(numbers, results, strict=True))
        met.paces.append((numbers, _seconds_of_iteration(pace, results)))
    return met


def _seconds_of_iteration(pace: Pace, runs: Sequence[AttackResult]) -> float | None:
    """Return the seconds per iteration of a batch, whose slowest trial decides; None if no evaluation was timed."""
    each = [run.reconstruction.evaluations / run.reconstruction.iterations.clamp_min(1) for run in runs]
    return None if pace.seconds is None else pace.seconds * float(torch.cat(each).max())


def fitting(ranked: Sequence[int], met: Met, most: int, seconds: float, *, control: bool) -> list[int]:
    """Return the longest prefix of the ranked cases that the full attack has time for; `control` adds case 0."""
    always = {0} if control else set()
    for number in range(len(ranked), 0, -1):
        if whole_seconds(always | set(ranked[:number]), met, most) <= seconds:
            return list(ranked[:number])
    return []


def whole_seconds(chosen: set[int], met: Met, most: int) -> float:
    """Return the estimated time of `most` iterations of these cases, from the measured pace of their batches."""
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
    """An exposure, the attack on it, and the exposure in words."""

    exposure: Exposure
    entry: Entry
    words: str = "no remedy"

    @property
    def trials(self) -> int:
        """Return the number of clients."""
        return self.exposure.batch.trials


def batches(cases: Sequence[Case]) -> list[list[int]]:
    """Return the case numbers that run as one batch, ordered by the first case of each."""
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        attack = case.entry.make(1)
        # settings with per-trial values belong to one exposure, so such a case runs alone
        alone = f" {number}" if any(True for _ in tensors(attack)) else ""
        world = case.exposure
        sends = f"{world.model.name} {world.observation.rounds[0].buffers_after is not None}"
        groups.setdefault(f"{readable(attack)} {_kind(_needed(attack, case))} {sends}{alone}", []).append(number)
    return list(groups.values())


def run_together(cases: Sequence[Case], iterations: int, pace: Pace | None = None) -> list[AttackResult]:
    """Return the run of each case of ONE batch (see `batches`); its seconds are an equal share of the batch's time."""
    method, first = cases[0].entry.make(iterations), cases[0]
    joined = join([replace(case.exposure, knowledge=_needed(method, case), informed=None) for case in cases])
    execution = replace(execution_on(joined.device), out_of_time=pace)
    began = time.perf_counter()
    whole = reconstruct(joined, method, execution)
    seconds = (time.perf_counter() - began) / len(cases)
    note = iterations_note(first.entry, iterations, whole)
    return [
        judge(case.exposure.batch, part, name=case.entry.name, note=note, seconds=seconds)
        for case, part in zip(cases, _parts(whole, [case.trials for case in cases]), strict=True)
    ]


def _needed(attack: Attack, case: Case) -> Knowledge:
    """Return the knowledge this attack uses; unused facts would keep exposures from sharing a batch."""
    known = case.exposure.known(informed=case.entry.informed)
    if not isinstance(attack, Matching) or known.labels is None:
        return known
    return without_unneeded(attack.objective, known)


def _kind(known: Knowledge) -> str:
    """Return the knowledge as text, without the values of single trials."""
    shapes = {name: tuple(value.shape[1:]) for name, value in flat_names(known).items()}
    plain = map_tensors(lambda value: value.new_zeros(0), known)
    return f"{shapes} {plain}"


def _parts(whole: Reconstruction, widths: Sequence[int]) -> list[Reconstruction]:
    """Return the trials of each case."""
    ends = torch.tensor(list(widths)).cumsum(0).tolist()
    return [take(whole, slice(end - width, end)) for end, width in zip(ends, widths, strict=True)]
