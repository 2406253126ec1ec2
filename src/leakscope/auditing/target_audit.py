"""`leakscope.audit(model, loss, inputs, labels)`: what updates of a user's model leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from leakscope.auditing.advice import Advice, advise
from leakscope.auditing.attack_runs import (
    FAILED,
    INTERRUPTED,
    LONG,
    PLAY_SHARE,
    LabelReading,
    Suite,
    affordable_clients,
    check_finite,
    check_updates,
    expose_clients,
    fastest_threads,
    most_clients,
    null_runs,
    plan_exposure,
    public_examples,
    read_labels,
    run_entries,
    suite_of,
)
from leakscope.auditing.attempts import Attempt
from leakscope.auditing.chosen_attacks import Chosen, choose_attacks
from leakscope.auditing.dishonest_server import Dishonest, Server, play_dishonest, read_server
from leakscope.auditing.limits import Budget, Pace, after_loading, check_numbers, start_budget
from leakscope.auditing.result import Audit
from leakscope.auditing.static.inspection import inspect_target
from leakscope.auditing.suite import Entry, Untested, unknown_defences
from leakscope.auditing.target import Subject, Target, UntestedError, make_subject
from leakscope.auditing.target_readings import TargetError, read_targets
from leakscope.auditing.tokens.audit import audit_tokens
from leakscope.auditing.tokens.columns import unread_columns
from leakscope.auditing.tokens.network import NO_CHOICE, holds_tokens
from leakscope.auditing.verdict import LEAKING, Grade, grade, measure, recovered_as_seen
from leakscope.core.errors import InputError
from leakscope.core.plugins import load_plugins
from leakscope.core.progress import ProgressOption, Reporter, reporting
from leakscope.play import AttackResult, Exposure
from leakscope.sweep.engines.contract import torch_threads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leakscope.auditing.criterion import Criterion
    from leakscope.clients import Aggregation, Client
    from leakscope.core.types import LocalTraining
    from leakscope.defences import Defence

MINUTES = 4.0
SECOND = 4.0  # times the clients' gradient that an evaluation, a derivative of it, may take before one was timed
CLIENTS = 8
SUITE_SHARE = 0.5  # share of the time; the rest is for remedies, and for attacks that were cut short
WHOLE_SHARE = 0.9  # share of the time for the suite alone; the rest is for baselines and scores
SERVER_SHARE = 0.5  # of the time left after the suite, for the manipulations of a malicious server
SPARE = 1.2  # times the minutes that would do, for a machine that is slower the next time
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
    aggregate: int | Aggregation = 1,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    words: Sequence[str] | None = None,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    remedies: bool = True,
    attacks: Sequence[Chosen] | None = None,
    server: str = Server.CURIOUS,
    seed: int = 0,
    device: str | None = None,
    progress: ProgressOption = None,
) -> Audit:
    """Attack updates of this model with the fixed suite within `minutes`, and return how much of this sample they leak.

    `Target` documents the arguments that describe the federation. `clients` disjoint clients with `examples` each are simulated.
    `remedies` also tests the catalogue of defences if something leaked. `progress` receives `ProgressEvent`s; by default they are
    shown in a terminal or notebook, False shows nothing. After Ctrl-C the audit holds the attacks that had ended (`interrupted`).
    `attacks` are names of the catalogue, recipes such as `cpl`, or attacks such as `cpl(iterations=50)`, in the place of the suite;
    "suite" among them keeps it. A grade of A or B needs the whole suite. With the `server` "malicious" the manipulations of
    `leakscope.servers` that fit the model are also played, and graded apart (`Audit.dishonest`).
    """
    target = Target(
        model=model, inputs=inputs, labels=labels, loss=loss, client=client, defences=defences, examples=examples,
        aggregate=aggregate, mean=mean, std=std, device=device, words=words,
    )  # fmt: skip
    return audit_target(
        target, minutes=minutes, clients=clients, remedies=remedies, attacks=attacks, server=server, seed=seed,
        progress=progress,
    )  # fmt: skip


def audit_target(
    target: Target,
    *,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    remedies: bool = True,
    attacks: Sequence[Chosen] | None = None,
    server: str = Server.CURIOUS,
    seed: int = 0,
    progress: ProgressOption = None,
) -> Audit:
    """Return the audit of a target; see `audit`."""
    clients, seed = check_numbers(clients, seed)
    who = read_server(server)
    budget = start_budget(minutes)
    with reporting(progress) as report:
        budget = after_loading(budget, report)
        audit = _audit_within(budget, target, attacks, minutes, clients, seed, report, remedies=remedies, server=who)
    return replace(audit, static=inspect_target(target, exposure=audit.exposure))


def _audit_within(
    budget: Budget,
    target: Target,
    attacks: Sequence[Chosen] | None,
    minutes: float,
    clients: int,
    seed: int,
    report: Reporter,
    *,
    remedies: bool,
    server: Server,
) -> Audit:
    name = type(target.model).__name__
    report(name, "checking the model and its updates")
    try:
        if holds_tokens(target):
            if attacks is not None:
                raise InputError(NO_CHOICE)
            return audit_tokens(
                target, budget, report, minutes=minutes, clients=clients, seed=seed, remedies=remedies,
                dishonest=server is Server.MALICIOUS,
            )  # fmt: skip
        subject = make_subject(target)
        exposure, gradient = affordable_clients(subject, clients, seed, budget)
        check_finite(exposure)
        check_updates(exposure if _comparable(exposure) else expose_clients(subject, 2, seed, defences=()))
    except UntestedError as error:
        left_out = (Untested("the model", str(error)),)
        return Audit(
            name=name, grade=Grade.UNTESTED, untested=left_out, minutes=minutes, seconds=budget.used, seed=seed
        )
    entries, untested = _planned(exposure, subject, target.model, attacks)
    played, wanted = exposure.trials, most_clients(subject, clients)
    unplayed = f"{played} of {wanted} clients were simulated" if entries and played < wanted else ""
    share = SUITE_SHARE if remedies else WHOLE_SHARE
    report(name, "timing an evaluation")
    with torch_threads(torch.get_num_threads() if gradient > LONG else fastest_threads(exposure, entries)):

        def attacked(share: float) -> Suite:
            done = run_entries(exposure, attempts, replace(budget, seconds=share * budget.seconds), report)
            return done._replace(unplayed=unplayed)

        def scored(done: Suite) -> Audit:
            audit = scored_audit(name, exposure, done, nulls, reading, untested, budget, minutes=minutes, seed=seed)
            return replace(audit, minutes_needed=minutes_needed(done, before, share, wanted / played))

        before, nulls, advice, interrupted = budget.used, list[AttackResult](), None, False
        dishonest: Dishonest | None = None
        attempts: list[Attempt[AttackResult]] = []
        reading: LabelReading | Untested = Untested("label recovery", INTERRUPTED)
        quarter = replace(budget, seconds=budget.used + PLAY_SHARE * budget.left)
        try:
            slow = gradient > LONG
            late = Untested("label recovery", "there was no time left") if slow and not budget.left else None
            reading = late or read_labels(exposure, quarter if slow else None)
            attempts += timed_attempts(entries, played, gradient, budget.used - before)
            done = attacked(share)
            report(name, "baselines without the update")
            public = public_examples(subject, played, seed)
            nulls, lost = null_runs(exposure, public, Pace(budget.clock, budget.end))
            untested += lost
            if server is Server.MALICIOUS:
                part = replace(budget, seconds=budget.used + SERVER_SHARE * budget.left)
                dishonest = play_dishonest(subject, exposure, public, nulls, part, report, seed=seed)
            advice = _advice(subject, scored(done), budget, report) if remedies else None
            attacked(WHOLE_SHARE)
        except KeyboardInterrupt:  # attacks that had ended are kept
            interrupted = True
        audit = scored(suite_of(attempts, interrupted=interrupted)._replace(unplayed=unplayed))
    return replace(audit, advice=advice, notes=subject.notes, dishonest=dishonest, seconds=budget.used)


def _planned(
    exposure: Exposure, subject: Subject, module: nn.Module, attacks: Sequence[Chosen] | None
) -> tuple[list[Entry], list[Untested]]:
    """Return the attacks to run and what is not tested."""
    load_plugins()  # their defences are tried as remedies
    unknown = unknown_defences(exposure.client, exposure.observation)
    suite = plan_exposure(exposure, unmatched=subject.unmatched, unknown=unknown)
    entries, untested = choose_attacks(*suite, attacks, exposure)
    return entries, [*untested, *left_out_statistics(exposure), *unread_columns(module, exposure)]


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
    outcome = reading if exposure.batch.targets is None else read_targets(exposure, done.runs)
    labels = outcome if isinstance(outcome, LabelReading) else None
    values = outcome if isinstance(outcome, TargetError) else None
    unfinished = (*done.unfinished, *(f"{item.what} was left out" for item in untested if item.left_out))
    unfinished += tuple(f"{item.what} were not counted" for item in untested if item.failed)
    if isinstance(outcome, Untested) and outcome.failed:
        unfinished += (f"{outcome.what} {FAILED}",)
    if done.runs and not nulls and not done.interrupted:  # none of the attacks can be called no closer
        unfinished += ("no baseline without the update could be computed",)
    compared = bool(nulls) or not done.interrupted  # without baselines no leak is proven
    as_seen = recovered_as_seen(exposure, done.runs, nulls) if compared else ()
    return Audit(
        name=name,
        grade=grade(done.runs if compared else (), nulls, labels, values, unfinished=unfinished, as_seen=as_seen),
        measures=measure(done.runs, nulls, labels),
        runs=done.runs,
        nulls=tuple(nulls),
        as_seen=as_seen,
        labels=labels,
        target_error=values,
        untested=(*untested, *done.untested, *([outcome] if isinstance(outcome, Untested) else [])),
        exposure=exposure,
        minutes=minutes,
        seconds=budget.used,
        seed=seed,
        short=done.short,
        unfinished=unfinished,
        interrupted=done.interrupted,
        minutes_needed=minutes_needed(done, 0.0, WHOLE_SHARE),
    )


def timed_attempts(
    entries: Sequence[Entry], clients: int, gradient: float, labels: float
) -> list[Attempt[AttackResult]]:
    """Return the attempts with guessed times: of an evaluation, and of reading labels and predicting memory before the first."""
    pace = SECOND * gradient
    return [Attempt[AttackResult](entry, clients, pace=pace, overhead=labels + pace / clients) for entry in entries]


def minutes_needed(done: Suite, before: float, share: float, times: float = 1.0) -> float | None:
    """Return the minutes for enough iterations of every attack on `times` the clients, if `before` seconds precede it.

    None if more time would not help or nothing was timed.
    """
    if done.needed is None or not (done.unplayed or any(not cut.enough for cut in done.short)):
        return None
    return SPARE * times * (before + done.needed) / share / 60


def left_out_statistics(exposure: Exposure) -> list[Untested]:
    """Return that no attack had the statistics of batch norm, where clients in train mode do not send them."""
    model, sent = exposure.model, exposure.observation.rounds[0].buffers_after
    if sent is not None or not model.norms or model.in_mode("eval") is model:
        return []
    why = "these clients send none; if yours send their whole state_dict, audit with Client(sends_buffers=True)"
    return [Untested("means and variances of batch norm", why)]


def _comparable(exposure: Exposure) -> bool:
    """Return whether the updates show that they depend on the data: several clients without a defence, such as noise."""
    return exposure.trials > 1 and not exposure.client.defences


def _advice(subject: Subject, audit: Audit, budget: Budget, report: Reporter) -> Advice | None:
    """Return advice if content leaked, else None."""
    exposure = audit.exposure
    if exposure is None or audit.worst is None or audit.grade not in LEAKING:
        return None
    clients = min(REMEDY_CLIENTS, exposure.batch.trials, max(REMEDY_LEAST, REMEDY_EXAMPLES // subject.behind))
    return advise(subject, exposure, audit.runs, budget, report, clients=clients, seed=audit.seed)
