"""Remedies meet the attacker who knows them, all of them together: first briefly, then with the iterations of its authors.

The judge is told the labels, with a remedy and without: rules that read labels off an update fail where it is clipped or where
coordinates are missing, and an attacker may have the labels from elsewhere. What hides labels alone is not taken for a remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from leakscope.auditing.attack_batching import Case, OutOfTimeError, Pace, batches, run_together
from leakscope.auditing.attack_runs import Tell, expose_clients, plan_exposure, run_with
from leakscope.auditing.limits import Budget
from leakscope.auditing.remedies import cut_off, stacked
from leakscope.auditing.suite import TOLD, Entry
from leakscope.auditing.target import Subject
from leakscope.core.errors import InputError
from leakscope.core.types import direction
from leakscope.defences import Defence
from leakscope.defences.stack import revealed
from leakscope.play import AttackResult, Exposure

START = 0.3  # of a batch's time that does not shrink with its trials
OVERTIME = 0.1  # of the budget, before a batch that takes longer than foreseen is given up


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The clients that remedies are tried on: the subject, how many clients, and the seed that draws them."""

    subject: Subject
    clients: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A remedy with its clients: the attack it meets, whether that knows it, and what a division recovers (None: cannot be)."""

    name: str
    strength: str
    defence: Defence
    case: Case
    knows: bool
    divided: AttackResult | None = None

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
    return Candidate(name, strength, defence, case, knows, divided[0] if divided else None)


def entry_of(exposure: Exposure, attack: str) -> Entry:
    """Return the attack as the suite has it in this exposure; told of the defences where there are any, never untold."""
    wanted = attack if exposure.informed is None else f"{attack}, {TOLD}"
    for entry in plan_exposure(exposure)[0]:
        if entry.name in (wanted, attack) and entry.informed == (exposure.informed is not None):
            return replace(entry, name=attack)
    raise InputError(f"no {attack} that knows it can be run")


def meet(cases: Sequence[Case], iterations: int, budget: Budget, tell: Tell) -> Met:
    """Return what the attack makes of every case within so many iterations, batch by batch.

    A batch that is still at work when the budget is well over is given up: its cases have no run. Where a batch cannot be run, its
    cases are run one by one, and those to blame say why.
    """
    met = Met(iterations)
    queue = batches(cases)
    while queue:
        numbers = queue.pop(0)
        names = ", ".join(cases[number].words for number in numbers)
        tell(f"{cases[0].entry.name}, {iterations} iterations, together: {names}")
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
