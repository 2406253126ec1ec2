"""What would help: the catalogue of defences against the attacker who knows each of them, first briefly, then to the end.

A short attack shows that a remedy does not help: it gets as much as without it. It never shows that one helps, for it may have
failed for lack of time alone. So what a short attack leaves is attacked again with the iterations of the attack's authors, the most
promising first; what there was no time for is named as not tested long enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from leakscope.core.errors import InputError
from leakscope.core.types import direction
from leakscope.defences import Defence
from leakscope.defences.stack import revealed
from leakscope.experiments.audit.budget import Budget
from leakscope.experiments.audit.playing import Tell, World, fitting_iterations, make_world, run_with
from leakscope.experiments.audit.remedies import (
    Finding,
    Remedy,
    by_cost,
    by_leakage,
    cut_off,
    find,
    remedies_for,
    stacked,
)
from leakscope.experiments.audit.suite import TOLD, Entry, plan_suite
from leakscope.experiments.audit.target import Subject
from leakscope.experiments.audit.utility import Course, accuracy_with, find_course
from leakscope.experiments.story import AttackRun

ENOUGH = 0.5  # of what the audit recovered; a control below that cannot judge remedies
SCREENING = 0.5  # of the time; the rest is for attacks to the end
MORE_TIME = "give it more minutes"


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedies that were shown to help, the best first, and how they were ranked.

    `useless` are those under which an attacker gets as much as before, `unproven` those that no attack was long enough for, that
    too few examples were tried on or that no attacker here knows, `skipped` (name, why) those that were not tried.
    """

    remedies: tuple[Remedy, ...]
    ranking: str
    skipped: tuple[tuple[str, str], ...] = ()
    accuracy: float | None = None
    useless: tuple[Remedy, ...] = ()
    unproven: tuple[Remedy, ...] = ()


def tried(advice: Advice) -> tuple[Remedy, ...]:
    """Return every remedy that met an attack: first those that help, then those that do not, then what nobody knows."""
    return (*advice.remedies, *advice.useless, *advice.unproven)


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """The attack without a remedy, as the remedies are attacked first: its run, its iterations, and what its authors run."""

    attack: str
    run: AttackRun
    iterations: int
    most: int

    @property
    def seconds(self) -> float:
        """Return about what the attack takes with the iterations of its authors."""
        return self.run.seconds * self.most / max(int(self.run.reconstruction.iterations.max()), 1)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The clients that remedies are tried on: the subject, how many clients, and the seed that draws them."""

    subject: Subject
    clients: int
    seed: int


def advise(
    subject: Subject,
    world: World,
    runs: Sequence[AttackRun],
    budget: Budget,
    tell: Tell,
    *,
    clients: int,
    seed: int,
) -> Advice:
    """Return what each remedy leaves of the leak and what it costs, within the budget.

    All are compared with a control: the same attack, iterations and clients without the remedy. Where the control falls far
    behind the audit itself, fewer remedies are tried at first, with more time for each, and none if that does not help.
    """
    trial, options = Trial(subject, clients, seed), remedies_for(world)
    judge = _judge(runs, [entry.name for entry in _entries(subject, world) if entry.most is not None])
    if judge is None:
        why = "no attacker who knows a defence can handle this model"
        return Advice((), why, tuple((f"{name} ({strength})", why) for name, strength, _ in options))
    course: Course | str = find_course(subject)
    measured = course if isinstance(course, Course) else None
    best = max(run.summary.content.value for run in runs)
    screening = Budget(budget.used + SCREENING * budget.left, budget.began, budget.clock)
    control, wanted = _control(trial, judge, best, screening, len(options), tell)
    if control is None:
        skipped = tuple((f"{name} ({strength})", "out of time") for name, strength, _ in options)
        return Advice((), f"in the time left the attack recovers too little even without one; {MORE_TIME}", skipped)
    found, late = _screen(trial, options[:wanted], control, measured, screening, tell)
    key = by_leakage if measured is None else by_cost(control.run.summary.content.value)
    found = _to_the_end(trial, sorted(found, key=key), control, budget, tell)
    spare = Budget(budget.used + budget.left - control.run.seconds, budget.began, budget.clock)
    more, skipped_now = _screen(trial, options[wanted:], control, measured, spare, tell)
    found += _to_the_end(trial, sorted(more, key=key), control, budget, tell)
    return _sorted(found, key, (*late, *skipped_now), course, control)


def _judge(runs: Sequence[AttackRun], able: Sequence[str]) -> str | None:
    """Return the attack that judges: of those that can be told of a defence the one that recovered most, then the quickest."""
    those = [run for run in runs if run.name in able]
    chosen = max(those, key=lambda run: (run.summary.content.value, -run.seconds), default=None)
    return None if chosen is None else chosen.name.removesuffix(f", {TOLD}")


def _control(
    trial: Trial, attack: str, before: float, budget: Budget, options: int, tell: Tell
) -> tuple[Control | None, int]:
    """Return the control, and how many remedies there is time for; (None, 0) where no remedy could be judged."""
    world = make_world(trial.subject, trial.clients, trial.seed)
    entry = _entry(trial.subject, world, attack)
    for wanted in (options, options // 2, options // 4):
        iterations = fitting_iterations(world, entry, budget.left / (wanted + 2))
        tell(f"control: {attack}, {iterations} iterations without a remedy")
        control = Control(attack, run_with(world, entry, iterations), iterations, entry.most or 0)
        if control.run.summary.content.value >= ENOUGH * before:
            return control, wanted
    return None, 0


def _screen(
    trial: Trial,
    options: Sequence[tuple[str, str, Defence]],
    control: Control,
    course: Course | None,
    budget: Budget,
    tell: Tell,
) -> tuple[list[Remedy], list[tuple[str, str]]]:
    """Return the remedies after the iterations of the control, and (name, why) of those left out."""
    found: list[Remedy] = []
    skipped: list[tuple[str, str]] = []
    for name, strength, defence in options:
        if budget.left <= 0:
            skipped.append((f"{name} ({strength})", "out of time"))
            continue
        tell(f"remedy {name}, {strength}")
        try:
            made = _tried(trial, name, strength, defence, control, control.iterations)
        except InputError as error:
            skipped.append((f"{name} ({strength})", str(error)))
            continue
        if course is not None and made.finding is not Finding.USELESS:
            accuracy = accuracy_with(course, stacked(trial.subject.client.defences, defence))
            made = replace(made, accuracy=accuracy, lost=course.accuracy - accuracy)
        found.append(made)
    return found, skipped


def _to_the_end(trial: Trial, ranked: list[Remedy], control: Control, budget: Budget, tell: Tell) -> list[Remedy]:
    """Return the remedies after those not tested long enough met the whole attack, in order, as long as there is time."""
    made = []
    for remedy in ranked:
        needed = control.seconds if cut_off(remedy.run) else remedy.run.seconds
        if remedy.finding is Finding.SHORT and budget.left >= needed:
            tell(f"{remedy.words} against {control.attack}, {control.most} iterations")
            again = _tried(trial, remedy.name, remedy.strength, remedy.defence, control, control.most)
            remedy = replace(again, accuracy=remedy.accuracy, lost=remedy.lost)
        made.append(remedy)
    return made


def _tried(trial: Trial, name: str, strength: str, defence: Defence, control: Control, iterations: int) -> Remedy:
    """Return a remedy that met the attacker who knows it and, where the first layer allows it, the division."""
    subject = trial.subject
    world = make_world(subject, trial.clients, trial.seed, defences=stacked(subject.client.defences, defence))
    entry = _entry(subject, world, control.attack)
    told = run_with(world, entry, iterations)
    runs = [told, *(run_with(world, each, 0) for each in _entries(subject, world) if each.most is None)]
    worst = max(runs, key=lambda run: (run.summary.content.value, run.summary.means["psnr"].value))
    update = direction(world.observation.rounds[0], world.observation.shares)
    finding = find(
        worst,
        control.run,
        whole=iterations >= control.most,
        knows=bool(revealed((defence,), update)),
    )
    met = f"{control.attack} that knows it, {iterations} of {control.most} iterations"
    return Remedy(name, strength, defence, worst, finding, met)


def _entry(subject: Subject, world: World, attack: str) -> Entry:
    """Return the attack as the suite has it in this world; told of the defences where there are any, never untold."""
    wanted = attack if world.informed is None else f"{attack}, {TOLD}"
    for entry in _entries(subject, world):
        if entry.name in (wanted, attack) and entry.informed == (world.informed is not None):
            return replace(entry, name=attack)
    raise InputError(f"no {attack} that knows it can be run")


def _entries(subject: Subject, world: World) -> list[Entry]:
    steps = 1 if world.client.local is None else world.client.local.steps(subject.examples)
    return plan_suite(subject.model, world.knowledge, world.informed, steps=steps, shares=world.observation.shares)[0]


def _sorted(
    found: Sequence[Remedy],
    key: Callable[[Remedy], tuple[float, float]],
    skipped: tuple[tuple[str, str], ...],
    course: Course | str,
    control: Control,
) -> Advice:
    """Return the advice: what helps apart from what does not and from what nobody knows."""

    def those(*kinds: Finding) -> tuple[Remedy, ...]:
        return tuple(sorted((remedy for remedy in found if remedy.finding in kinds), key=key))

    return Advice(
        remedies=those(Finding.HELPS),
        ranking=_ranking(found, course, control),
        skipped=skipped,
        accuracy=None if isinstance(course, str) else course.accuracy,
        useless=those(Finding.USELESS),
        unproven=those(Finding.SHORT, Finding.CHANCE, Finding.BLIND),
    )


def _ranking(found: Sequence[Remedy], course: Course | str, control: Control) -> str:
    """Return in words how remedies were ranked, against what, and how many were shown nothing about."""
    summary, counts = control.run.summary, Counter(remedy.finding for remedy in found)
    against = (
        f"; without a remedy {control.attack} recovers {summary.content.value:.0%} of {summary.samples} examples in "
        f"{control.iterations} iterations"
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
