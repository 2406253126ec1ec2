"""Advice on defences: each defence of the catalogue is attacked by an attacker who knows it, then ranked.

Every remedy is compared with a control: the same attack, iterations and clients without it. Remedies are screened with a short
attack, then tested with the iterations of the attack's authors. A short attack that recovers as much as the control proves that
a remedy does not help. A short attack that fails proves nothing: it may only have lacked time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from leakscope.auditing.attack_runs import plan_exposure
from leakscope.auditing.attempts import iterations_within
from leakscope.auditing.changes import Change
from leakscope.auditing.chosen_attacks import suite_name
from leakscope.auditing.limits import LEAST_ITERATIONS, Budget
from leakscope.auditing.remedies import (
    ELSEWHERE,
    Course,
    Finding,
    Remedy,
    accuracy_with,
    by_cost,
    by_leakage,
    find,
    find_course,
    remedies_for,
)
from leakscope.auditing.remedy_trials import (
    Candidate,
    Case,
    Met,
    Trial,
    batches,
    control_case,
    fitting,
    make_candidate,
    meet,
)
from leakscope.auditing.suite import FEATURES
from leakscope.auditing.target import Subject
from leakscope.core.errors import InputError
from leakscope.core.progress import Reporter
from leakscope.core.short_repr import short_repr
from leakscope.defences import Defence
from leakscope.play import AttackResult, Exposure

ENOUGH = 0.5  # share of what the audit recovered; a control below it cannot judge remedies
BRIEF = 16  # the screening attack runs 1/BRIEF of the iterations its authors use
SCREENING = 0.4  # largest share of the time for screening
TRAINING = 0.2  # largest share of the time for trainings that measure accuracy
MARGIN = 0.9  # share of the time left; the rest absorbs errors of the time estimate
MORE_TIME = "give it more minutes"
LATE = "out of time"
SETTLED = (Finding.USELESS, Finding.BLIND)  # a longer attack is least likely to change these
Key = Callable[[Remedy], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedies that were shown to help, best first, and how they were ranked."""

    remedies: tuple[Remedy, ...]
    ranking: str
    skipped: tuple[tuple[str, str], ...] = ()  # (name, why) of those not tried
    accuracy: float | None = None
    useless: tuple[Remedy, ...] = ()  # the attacker recovers as much as without them
    unproven: tuple[Remedy, ...] = ()  # attack too short, too few examples, or no informed attacker exists

    __repr__ = short_repr


def tried(advice: Advice) -> tuple[Remedy, ...]:
    """Return every remedy that was attacked: those that help, those that do not, then the unproven."""
    return (*advice.remedies, *advice.useless, *advice.unproven)


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """The attack without a remedy."""

    attack: str
    run: AttackResult
    iterations: int
    most: int  # iterations that the attack's authors use
    enough: bool = True  # it recovers enough to judge remedies by

    @property
    def whole(self) -> bool:
        """Return whether the attack had the iterations its authors use."""
        return self.iterations >= self.most


@dataclass(frozen=True, slots=True, eq=False)
class Hearing:
    """Input of the remedy test."""

    control: Case
    best: float  # share of the examples that the audit recovered
    budget: Budget
    candidates: Sequence[Candidate]
    report: Reporter

    @property
    def cases(self) -> list[Case]:
        """Return the control (number 0) and the candidates."""
        return [self.control, *(each.case for each in self.candidates)]

    @property
    def most(self) -> int:
        """Return the number of iterations the attack's authors use."""
        return self.control.entry.most or 0


def advise(
    subject: Subject,
    exposure: Exposure,
    runs: Sequence[AttackResult],
    budget: Budget,
    report: Reporter,
    *,
    clients: int,
    seed: int,
) -> Advice:
    """Return how much still leaks under each remedy and what accuracy it costs, within the budget."""
    trial, options = Trial(subject, clients, seed), remedies_for(exposure)
    entries, untested = plan_exposure(exposure, unmatched=subject.unmatched)
    able = [entry.name for entry in entries if entry.most is not None and entry.name != FEATURES]
    judge = _judge(runs, able)
    if judge is None:
        reason = next((item.why for item in untested if item.what == "ig"), "ig cannot be run")
        why = "no attack that could judge them ended" if able else f"they are judged by ig or cpl: {reason}"
        return Advice((), why, (*((f"{name} ({strength})", why) for name, strength, _ in options), *ELSEWHERE))
    if not budget.left:
        return Advice((), LATE, (*((f"{name} ({strength})", LATE) for name, strength, _ in options), *ELSEWHERE))
    report("remedies", f"{len(options)} against {judge}")
    course: Course | str = find_course(subject, seconds=TRAINING * budget.left / (1 + len(options)))
    candidates, skipped = _candidates(trial, options, judge, budget)
    best = max(run.summary.content.value for run in runs)
    control, remedies, late = _judged(Hearing(control_case(trial, judge), best, budget, candidates, report), course)
    if control is None or not control.enough:  # it recovers far less than the audit did: no remedy can be judged
        whole = control is not None and control.whole
        why = f"{judge} with all its iterations" if whole else "in the time left the attack"
        why += f" recovers too little even without one{'' if whole else f'; {MORE_TIME}'}"
        reason = "nothing to judge by" if whole else LATE
        return Advice((), why, (*skipped, *((each.words, reason) for each in candidates), *ELSEWHERE))
    return _sorted(remedies, (*skipped, *late, *ELSEWHERE), course, control)


def _judge(runs: Sequence[AttackResult], able: Sequence[str]) -> str | None:
    """Return the attack to test remedies with: the one with an informed variant that recovered most, then the fastest."""
    those = [run for run in runs if run.name in able]
    chosen = max(those, key=lambda run: (run.summary.content.value, -run.seconds), default=None)
    return None if chosen is None else suite_name(chosen.name)


def _candidates(
    trial: Trial, options: Sequence[tuple[str, str, Defence | Change]], attack: str, budget: Budget
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the remedies that can be attacked, and (name, why) of the others."""
    candidates: list[Candidate] = []
    skipped: list[tuple[str, str]] = []
    for name, strength, defence in options:
        if not budget.left:
            skipped.append((f"{name} ({strength})", LATE))
            continue
        try:
            candidates.append(make_candidate(trial, name, strength, defence, attack, budget))
        except InputError as error:
            skipped.append((f"{name} ({strength})", str(error)))
    return candidates, skipped


def _judged(hearing: Hearing, course: Course | str) -> tuple[Control | None, list[Remedy], list[tuple[str, str]]]:
    """Return the control, the finding on each remedy (most promising tested first), and (name, why) of those not attacked."""
    case, cases, numbered = hearing.control, hearing.cases, dict(enumerate(hearing.candidates, 1))
    brief = max(math.ceil(hearing.most / BRIEF), LEAST_ITERATIONS)
    each = SCREENING * hearing.budget.left / (2 * len(batches(cases)) + 1)  # a batch is slower than its control
    fit = iterations_within(case.exposure, case.entry, each)
    if fit < min(LEAST_ITERATIONS, hearing.most):
        return None, [], [(one.words, LATE) for one in hearing.candidates]
    first = meet(cases, min(brief, fit, hearing.most), hearing.budget, hearing.report)
    late = [(one.words, first.failed.get(n, LATE)) for n, one in numbered.items() if n not in first.runs]
    if 0 not in first.runs:
        return None, [], late
    control = _control(hearing, first.runs[0], first.iterations)
    remedies = {n: _tested(one, first.runs[n], control, course) for n, one in numbered.items() if n in first.runs}
    if not control.whole:
        control = _to_the_end(hearing, remedies, first, control, _key(course, control))
    return control, list(remedies.values()), late


def _to_the_end(hearing: Hearing, remedies: dict[int, Remedy], first: Met, control: Control, order: Key) -> Control:
    """Return the control of the full attack; update `remedies` in place with as many full attacks as the time allows."""
    cases, budget, last = hearing.cases, hearing.budget, control
    waiting = sorted(remedies, key=lambda n: (remedies[n].finding in SETTLED, order(remedies[n])))
    while chosen := fitting(waiting, first, control.most, MARGIN * budget.left, control=not last.whole):
        numbers = chosen if last.whole else [0, *chosen]
        met = meet([cases[n] for n in numbers], control.most, budget, hearing.report)
        runs = {numbers[place]: run for place, run in met.runs.items()}
        if 0 in runs:
            last = _control(hearing, runs[0], control.most)
        if not last.whole:
            return control
        for n in set(chosen) & set(runs):
            remedy = _tested(hearing.candidates[n - 1], runs[n], last, None)
            remedies[n] = replace(remedy, accuracy=remedies[n].accuracy, lost=remedies[n].lost)
        waiting = [n for n in waiting if n not in chosen]
    return last


def _control(hearing: Hearing, run: AttackResult, iterations: int) -> Control:
    """Return the control from one run of the attack."""
    enough = run.summary.content.value >= ENOUGH * hearing.best
    return Control(hearing.control.entry.name, run, iterations, hearing.most, enough)


def _tested(candidate: Candidate, run: AttackResult, control: Control, course: Course | str | None) -> Remedy:
    """Return the result of a remedy against the informed attacker and the attacks without iterations."""
    worst = max(
        (run, *candidate.exact), key=lambda each: (each.summary.content.value, each.summary.means["psnr"].value)
    )
    finding = find(worst, control.run, whole=control.whole, knows=candidate.knows)
    if not control.enough:
        finding = Finding.SHORT
    knows = "it and the labels" if candidate.knows else "the labels"
    met = f"{control.attack} that knows {knows}, {control.iterations} of {control.most} iterations"
    remedy = Remedy(candidate.name, candidate.strength, candidate.defence, worst, finding, met)
    if isinstance(candidate.defence, Change):  # the short training has clients and batches of its own
        return replace(remedy, batch=candidate.case.exposure.batch)
    if not isinstance(course, Course):
        return remedy
    accuracy = accuracy_with(course, candidate.case.exposure.client.defences)
    return replace(remedy, accuracy=accuracy, lost=course.accuracy - accuracy)


def _key(course: Course | str, control: Control) -> Key:
    """Return the sort key: leakage prevented per accuracy lost where accuracy was measured, else leakage alone."""
    return by_cost(control.run.summary.content.value) if isinstance(course, Course) else by_leakage


def _sorted(
    remedies: Sequence[Remedy], skipped: tuple[tuple[str, str], ...], course: Course | str, control: Control
) -> Advice:
    """Return the advice, remedies sorted by finding."""

    def those(*kinds: Finding) -> tuple[Remedy, ...]:
        return tuple(sorted((remedy for remedy in remedies if remedy.finding in kinds), key=_key(course, control)))

    return Advice(
        remedies=those(Finding.HELPS),
        ranking=_ranking(remedies, course, control),
        skipped=skipped,
        accuracy=None if isinstance(course, str) else course.accuracy,
        useless=those(Finding.USELESS),
        unproven=those(Finding.SHORT, Finding.CHANCE, Finding.BLIND),
    )


def _ranking(remedies: Sequence[Remedy], course: Course | str, control: Control) -> str:
    """Return in words how remedies were ranked, against which control, and how many had each other finding."""
    summary, counts = control.run.summary, Counter(remedy.finding for remedy in remedies)
    against = (
        f"; without a remedy {control.attack}, which knows the labels, recovers {summary.content.value:.0%} of {summary.samples} "
        f"examples in {control.iterations} iterations"
    )
    for finding in (Finding.USELESS, Finding.CHANCE, Finding.BLIND, Finding.SHORT):
        against += f"; {finding.value}: {counts[finding]}" if counts[finding] else ""
    if counts[Finding.SHORT]:
        against += f" ({control.attack} is run for {control.most} iterations; {MORE_TIME})"
    if isinstance(course, str):
        return f"by what is still recovered alone: accuracy was not measured ({course}){against}"
    return (
        f"by the share no longer recovered for each point of accuracy lost in a training of {course.rounds} rounds on the sample "
        f"(undefended: {course.accuracy:.0%}){against}"
    )
