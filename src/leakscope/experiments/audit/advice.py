"""What would help: the catalogue of defences, each at two strengths, against the attack that does most in little time, told of them.

Strengths are relative to the update itself, so that they mean the same for every model: noise and clips in units of its own
length. A defence that is already configured stays; the remedy is put in front or behind as the stack's rules allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from leakscope.core.errors import InputError
from leakscope.core.tree import count, lift, norm
from leakscope.core.types import direction
from leakscope.defences import (
    Clip,
    DeepCompression,
    Defence,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    Sign,
    Sparsify,
)
from leakscope.defences.stack import check_stack
from leakscope.experiments.audit.budget import Budget
from leakscope.experiments.audit.playing import Tell, World, fitting_iterations, make_world, run_with
from leakscope.experiments.audit.suite import PUBLISHED, TOLD, Entry, plan_suite
from leakscope.experiments.audit.target import Subject
from leakscope.experiments.audit.utility import Course, accuracy_with, find_course
from leakscope.experiments.story import AttackRun

COST = 0.01  # of accuracy; below that, losses are not told apart
MOST_CONFIRMED = 3
FEW = 0.25  # of the iterations that an attack's authors run
ENOUGH = 0.5  # of what the audit recovered; a control below that cannot judge remedies


@dataclass(frozen=True, slots=True, eq=False)
class Remedy:
    """A defence at one strength: what the attack still recovers under it, and the accuracy it costs (None: not measured).

    `confirmed` says which long attack the remedy also stood against; "" where it met the short one alone.
    """

    name: str
    strength: str
    defence: Defence
    run: AttackRun
    accuracy: float | None = None
    lost: float | None = None
    confirmed: str = ""

    @property
    def recovered(self) -> float:
        """Return the share of examples still recovered."""
        return self.run.summary.content.value

    @property
    def psnr(self) -> float:
        """Return the mean PSNR of what comes back."""
        return self.run.summary.means["psnr"].value


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedies, the best first; how they were ranked; (name, why) of those that were not tried."""

    remedies: tuple[Remedy, ...]
    ranking: str
    skipped: tuple[tuple[str, str], ...] = ()
    accuracy: float | None = None


def remedies_for(world: World) -> list[tuple[str, str, Defence]]:
    """Return (name, strength in words, defence) of the catalogue, each at two strengths."""
    update = direction(world.observation.rounds[0], world.observation.shares)
    length = float(lift(norm)(update).median())
    size = length / math.sqrt(count(update) / world.batch.trials)  # root mean square of a coordinate
    made: list[tuple[str, str, Defence]] = []
    for k in (0, 1):  # all at their weaker strength first, so that a short budget has seen every kind
        sigma, bound = (1.0, 10.0)[k] * size, (0.5, 0.05)[k] * length
        drop, share, bits, rank = (0.9, 0.99)[k], (0.5, 0.1)[k], (4, 2)[k], (2, 1)[k]
        made += [
            ("gaussian_noise", f"sigma {sigma:.2g}", GaussianNoise(sigma)),
            ("clip", f"bound {bound:.2g}", Clip(bound)),
            ("sparsify", f"drop {drop:g}", Sparsify(drop)),
            ("quantise", f"{bits} bits", Quantise(bits)),
            ("low_rank", f"rank {rank}", LowRank(rank)),
            ("random_mask", f"share {share:g}", RandomMask(share)),
            ("deep_compression", f"drop {drop:g}", DeepCompression(drop)),
            ("laplace_noise", f"sigma {sigma:.2g}", LaplaceNoise(sigma)),
        ]
    return [*made, ("sign", "one strength", Sign())]


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

    All are compared with a control: the same attack, iterations and clients without the remedy. A remedy against which an
    attack had no time to succeed would look good for nothing; so where the control falls far behind the audit itself, fewer
    remedies are tried, with more time for each, and none if that does not help.
    """
    course: Course | str = find_course(subject)
    measured = course if isinstance(course, Course) else None
    attack = max(runs, key=lambda run: run.summary.content.value / max(run.seconds, 0.01))
    plain = attack.name.removesuffix(f", {TOLD}")
    options = remedies_for(world)
    control, wanted = _control(subject, plain, attack.summary.content.value, budget, len(options), tell, clients, seed)
    skipped = [(f"{name} ({strength})", "out of time") for name, strength, _ in options[wanted:]]
    if control is None or not wanted:
        return Advice(
            (), "in the time left the attack recovers too little even without one; give it more minutes", tuple(skipped)
        )
    found: list[Remedy] = []
    long = max(runs, key=lambda run: run.summary.content.value)
    reserve = min(0.5 * budget.left, long.seconds * clients / world.batch.trials)
    for name, strength, defence in options[:wanted]:
        if budget.left <= reserve:
            skipped.append((f"{name} ({strength})", "out of time"))
            continue
        tell(f"remedy {name}, {strength}")
        try:
            stack = _stacked(subject.client.defences, defence)
            run = _attacked(subject, stack, plain, control.iterations, clients, seed)
        except InputError as error:
            skipped.append((f"{name} ({strength})", str(error)))
            continue
        accuracy = None if measured is None else accuracy_with(measured, stack)
        lost = None if measured is None or accuracy is None else measured.accuracy - accuracy
        found.append(Remedy(name, strength, defence, run, accuracy, lost))
    if not found:
        return Advice((), "out of time; give it more minutes", tuple(skipped))
    before = control.run.summary.content.value
    key = by_leakage if measured is None else by_cost(before)
    words = _ranking(course, plain, control, before)
    ranked = _confirm(subject, sorted(found, key=key), key, long, budget, tell, clients, seed)
    return Advice(tuple(ranked), words, tuple(skipped), None if measured is None else measured.accuracy)


def _confirm(
    subject: Subject,
    ranked: list[Remedy],
    key: Callable[[Remedy], tuple[float, float]],
    long: AttackRun,
    budget: Budget,
    tell: Tell,
    clients: int,
    seed: int,
) -> list[Remedy]:
    """Return the remedies in order after the first ones met the attack that recovered most, with all its iterations.

    A short attack may fail for lack of time alone. Whichever of the two recovers more counts; a remedy that falls makes way
    for the next, as long as there is time.
    """
    plain = long.name.removesuffix(f", {TOLD}")
    iterations = int(long.reconstruction.iterations.max())
    for _ in range(MOST_CONFIRMED):
        if not ranked or ranked[0].confirmed or budget.left <= 0:
            break
        first = ranked[0]
        tell(f"confirming {first.name}, {first.strength}: {plain}, {iterations} iterations")
        try:
            again = _attacked(
                subject, _stacked(subject.client.defences, first.defence), plain, iterations, clients, seed
            )
        except InputError:
            break
        worse = max((first.run, again), key=lambda run: (run.summary.content.value, run.summary.means["psnr"].value))
        met = replace(first, run=worse, confirmed=f"{plain}, {iterations} iterations")
        ranked = sorted([met, *ranked[1:]], key=key)
    return ranked


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """The attack without a remedy, as the remedies are attacked: its run and its iterations."""

    run: AttackRun
    iterations: int


def _control(
    subject: Subject,
    attack: str,
    before: float,
    budget: Budget,
    options: int,
    tell: Tell,
    clients: int,
    seed: int,
) -> tuple[Control | None, int]:
    """Return the control, and how many remedies there is time for; (None, 0) where no remedy could be judged."""
    world = make_world(subject, clients, seed)
    entry = _entry(subject, world, attack)
    for wanted in (options, options // 2, options // 4):
        seconds = budget.left / (wanted + 2)
        iterations = fitting_iterations(world, entry, seconds)
        tell(f"control: {attack}, {iterations} iterations without a remedy")
        control = Control(run_with(world, entry, iterations), iterations)
        if control.run.summary.content.value >= ENOUGH * before:
            return control, wanted
    return None, 0


def _ranking(course: Course | str, attack: str, control: Control, before: float) -> str:
    """Return in words how remedies were ranked, and against what."""
    against = f"; without a remedy {attack} recovers {before:.0%} in the same {control.iterations or 1} iterations"
    if 0 < control.iterations < FEW * PUBLISHED.get(attack, 0):
        against += f", few beside the {PUBLISHED[attack]} of its authors: remedies may look better than they are"
    if isinstance(course, str):
        return f"by what is still recovered alone: accuracy was not measured ({course}){against}"
    return (
        f"by the share no longer recovered for each point of accuracy lost in a training of {course.rounds} rounds on the sample "
        f"(undefended: {course.accuracy:.0%}){against}"
    )


def by_leakage(remedy: Remedy) -> tuple[float, float]:
    """Return the order by what is still recovered, then by how close it comes."""
    return (remedy.recovered, remedy.psnr)


def by_cost(before: float) -> Callable[[Remedy], tuple[float, float]]:
    """Return the order by the share no longer recovered per accuracy lost, best first."""

    def key(remedy: Remedy) -> tuple[float, float]:
        lost = max(remedy.lost or 0.0, 0.0) + COST
        return (-(before - remedy.recovered) / lost, remedy.psnr)

    return key


def _stacked(configured: Sequence[Defence], added: Defence) -> tuple[Defence, ...]:
    """Return the configured defences with one more, behind or before them, whichever the rules of a stack allow."""
    behind, before = (*configured, added), (added, *configured)
    try:
        check_stack(behind)
    except InputError:
        check_stack(before)
        return before
    return behind


def _attacked(
    subject: Subject, stack: tuple[Defence, ...], attack: str, iterations: int, clients: int, seed: int
) -> AttackRun:
    """Return the attack, told of the defences, on clients that use them."""
    world = make_world(subject, clients, seed, defences=stack)
    return run_with(world, _entry(subject, world, attack), iterations)


def _entry(subject: Subject, world: World, attack: str) -> Entry:
    """Return the attack as the suite has it in this world, told of the defences where there are any."""
    steps = 1 if world.client.local is None else world.client.local.steps(subject.examples)
    entries, _ = plan_suite(
        subject.model, world.knowledge, world.informed, steps=steps, shares=world.observation.shares
    )
    chosen = [entry for entry in entries if entry.name in (f"{attack}, {TOLD}", attack)]
    if not chosen:
        raise InputError(f"{attack} cannot be run under it")
    return replace(chosen[-1], name=attack)
