"""`leakscope.audit(model, loss, inputs, labels)`: what updates of a user's model leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leakscope.auditing.advice import Advice, advise
from leakscope.auditing.attack_runs import (
    LabelReading,
    Report,
    Suite,
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
from leakscope.auditing.suite import Untested, unknown_defences
from leakscope.auditing.target import Subject, Target, UntestedError, make_subject
from leakscope.auditing.verdict import grade, measure, recovered_as_seen
from leakscope.play import AttackResult, Exposure
from leakscope.sweep.engines.contract import torch_threads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leakscope.auditing.criterion import Criterion
    from leakscope.clients import Client
    from leakscope.core.types import LocalTraining
    from leakscope.defences import Defence

MINUTES = 4.0
CLIENTS = 8
SUITE_SHARE = 0.5  # share of the time; the rest is for remedies
REMEDY_CLIENTS = 8
REMEDY_EXAMPLES = 16
REMEDY_LEAST = 6  # clients: examples of one client are dependent, and an interval over two clients is meaningless


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
    device: str | None = None,
) -> Audit:
    """Return how much updates of this model leak of this sample, attacked with the fixed suite within `minutes`.

    `Target` documents the arguments that describe the federation. `clients` disjoint clients with `examples` each are simulated.
    `remedies` also tests the catalogue of defences if something leaked.
    """
    target = Target(
        model=model, inputs=inputs, labels=labels, loss=loss, client=client, defences=defences, examples=examples,
        mean=mean, std=std, device=device,
    )  # fmt: skip
    return audit_target(target, minutes=minutes, clients=clients, remedies=remedies, seed=seed)


def audit_target(
    target: Target,
    *,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    remedies: bool = True,
    seed: int = 0,
    report: Report = lambda _: None,
) -> Audit:
    """Return the audit of a target; `report` receives progress messages."""
    clients, seed = check_numbers(clients, seed)
    budget = start_budget(minutes)
    name = type(target.model).__name__
    try:
        subject = make_subject(target)
    except UntestedError as error:
        left_out = (Untested("the model", str(error)),)
        return Audit(name=name, grade="untested", untested=left_out, minutes=minutes, seconds=budget.used, seed=seed)
    exposure = expose_clients(subject, clients, seed)
    unknown = unknown_defences(exposure.client, exposure.observation)
    entries, untested = plan_exposure(exposure, unmatched=subject.unmatched, unknown=unknown)
    with torch_threads(fastest_threads(exposure, entries)):
        part = Budget((SUITE_SHARE if remedies else 0.9) * budget.seconds, budget.began, budget.clock)
        reading = read_labels(exposure)
        done = run_entries(exposure, entries, part, report)
        nulls = null_runs(exposure, public_examples(subject, exposure.trials, seed))
        audit = scored_audit(name, exposure, done, nulls, reading, untested, budget, minutes=minutes, seed=seed)
        advice = _advice(subject, audit, budget, report) if remedies else None
    as_seen = recovered_as_seen(exposure, audit.runs)
    return replace(audit, advice=advice, notes=subject.notes, as_seen=as_seen, seconds=budget.used)


def scored_audit(
    name: str,
    exposure: Exposure,
    done: Suite,
    nulls: Sequence[AttackResult],
    reading: LabelReading | Untested,
    untested: Sequence[Untested],
    budget: Budget,
    *,
    minutes: float,
    seed: int,
) -> Audit:
    """Return the audit of scored attacks, before remedies are tried."""
    labels = reading if isinstance(reading, LabelReading) else None
    return Audit(
        name=name,
        grade=grade(done.runs, nulls, labels),
        measures=measure(done.runs, nulls, labels),
        runs=done.runs,
        nulls=tuple(nulls),
        labels=labels,
        untested=(*untested, *done.untested, *([reading] if isinstance(reading, Untested) else [])),
        exposure=exposure,
        minutes=minutes,
        seconds=budget.used,
        seed=seed,
        short=done.short,
    )


def _advice(subject: Subject, audit: Audit, budget: Budget, report: Report) -> Advice | None:
    """Return advice if content leaked, else None."""
    exposure = audit.exposure
    if exposure is None or audit.worst is None or audit.grade not in ("F", "D", "C"):
        return None
    clients = min(REMEDY_CLIENTS, exposure.batch.trials, max(REMEDY_LEAST, REMEDY_EXAMPLES // subject.examples))
    return advise(subject, exposure, audit.runs, budget, report, clients=clients, seed=audit.seed)
