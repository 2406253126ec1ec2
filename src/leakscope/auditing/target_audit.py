"""`leakscope.audit(model, loss, inputs, labels)`: what YOUR model, trained your way, gives away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakscope.auditing.advice import Advice, advise
from leakscope.auditing.attack_runs import (
    LabelReading,
    Suite,
    Tell,
    expose_clients,
    fastest_threads,
    null_runs,
    plan_exposure,
    public_examples,
    read_labels,
    run_entries,
)
from leakscope.auditing.limits import Budget, check_numbers, start_budget
from leakscope.auditing.result import Audit
from leakscope.auditing.suite import Entry, Untested, unknown_defences
from leakscope.auditing.target import Subject, Target, UntestedError, make_subject
from leakscope.auditing.verdict import Measures, grade, measure, recovered_as_seen, worst_run
from leakscope.play import AttackResult, Exposure
from leakscope.sweep.engines.contract import torch_threads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leakscope.auditing.target import Criterion
    from leakscope.clients import Client
    from leakscope.core.types import LocalTraining
    from leakscope.defences import Defence

MINUTES = 4.0
CLIENTS = 8
SUITE_SHARE = 0.5  # of the time; the rest is for remedies
REMEDY_CLIENTS = 8
REMEDY_EXAMPLES = 16
REMEDY_LEAST = 6  # clients: examples of one client are not independent, and an interval over two says nothing


def audit(
    model: nn.Module,
    loss: Criterion,
    inputs: Tensor,
    labels: Tensor,
    *,
    client: LocalTraining | Client | None = None,
    defences: Sequence[Defence] = (),
    examples: int = 1,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    remedies: bool = True,
    seed: int = 0,
) -> Audit:
    """Return what updates of this model give away of this sample, attacked with the fixed suite within `minutes`.

    See `Target` for the arguments that describe the federation. `clients` is how many clients are played (each with
    `examples` of the sample, none twice). `remedies` also tries the catalogue of defences on what leaked.
    """
    target = Target(
        model=model,
        inputs=inputs,
        labels=labels,
        loss=loss,
        client=client,
        defences=defences,
        examples=examples,
        mean=mean,
        std=std,
    )
    return audit_target(target, minutes=minutes, clients=clients, remedies=remedies, seed=seed)


def audit_target(
    target: Target,
    *,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    remedies: bool = True,
    seed: int = 0,
    tell: Tell = lambda _: None,
) -> Audit:
    """Return the audit of a target; `tell` hears what is being done."""
    clients, seed = check_numbers(clients, seed)
    budget = start_budget(minutes)
    name = type(target.model).__name__
    try:
        subject = make_subject(target)
    except UntestedError as error:
        return _untested(name, str(error), minutes, budget, seed)
    exposure = expose_clients(subject, clients, seed)
    entries, untested = plan_exposure(
        exposure,
        unmatched=subject.unmatched,
        unknown=unknown_defences(exposure.client, exposure.observation),
    )
    with torch_threads(fastest_threads(exposure, entries)):
        done, nulls, reading = _attacked(subject, exposure, entries, budget, tell, remedies=remedies, seed=seed)
        runs, labels = done.runs, reading if isinstance(reading, LabelReading) else None
        advice = _advice(subject, exposure, runs, nulls, labels, budget, tell, seed) if remedies else None
    return Audit(
        name=name,
        grade=grade(runs, nulls, labels),
        measures=measure(runs, nulls, labels),
        runs=runs,
        nulls=tuple(nulls),
        labels=labels,
        untested=(*untested, *done.untested, *([reading] if isinstance(reading, Untested) else [])),
        advice=advice,
        notes=subject.notes,
        exposure=exposure,
        minutes=minutes,
        seconds=budget.used,
        seed=seed,
        short=done.short,
        as_seen=recovered_as_seen(exposure, runs),
    )


def _attacked(
    subject: Subject,
    exposure: Exposure,
    entries: Sequence[Entry],
    budget: Budget,
    tell: Tell,
    *,
    remedies: bool,
    seed: int,
) -> tuple[Suite, list[AttackResult], LabelReading | Untested]:
    """Return what came of the suite, the null baselines, and the labels read."""
    reading = read_labels(exposure)
    share = SUITE_SHARE if remedies else 0.9
    part = Budget(share * budget.seconds, budget.began, budget.clock)
    return (
        run_entries(exposure, entries, part, tell),
        null_runs(exposure, public_examples(subject, exposure.trials, seed)),
        reading,
    )


def _advice(
    subject: Subject,
    exposure: Exposure,
    runs: Sequence[AttackResult],
    nulls: Sequence[AttackResult],
    labels: LabelReading | None,
    budget: Budget,
    tell: Tell,
    seed: int,
) -> Advice | None:
    """Return remedies where content leaked; None where there was nothing to remedy."""
    best = worst_run(runs, nulls)
    if best is None or grade(runs, nulls, labels) not in ("F", "D", "C"):
        return None
    clients = min(REMEDY_CLIENTS, exposure.batch.trials, max(REMEDY_LEAST, REMEDY_EXAMPLES // subject.examples))
    return advise(subject, exposure, runs, budget, tell, clients=clients, seed=seed)


def _untested(name: str, why: str, minutes: float, budget: Budget, seed: int) -> Audit:
    return Audit(
        name=name,
        grade="untested",
        measures=Measures(),
        runs=(),
        nulls=(),
        labels=None,
        untested=(Untested("the model", why),),
        advice=None,
        notes=(),
        exposure=None,
        minutes=minutes,
        seconds=budget.used,
        seed=seed,
    )
