"""Auditing what a real federation sent: captured updates, with the truth if the user has it, without if not.

Every capture is a client. Those of the fewest examples are attacked, at most as many as asked for: they leak most. Without
truth nothing can be scored; what can be said is how well the guess explains the update, whether it looks like a picture,
and what the same attack makes of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from leakscope.attacks.engine.plan import Execution
from leakscope.audit.auditing import CLIENTS, MINUTES
from leakscope.audit.budget import Budget, start_budget
from leakscope.audit.checking import check_numbers
from leakscope.audit.cut_short import CutShort
from leakscope.audit.gathering import (
    choose,
    list_one,
    local_training,
    model_of_captures,
    observe_captures,
)
from leakscope.audit.playing import (
    LabelReading,
    Tell,
    UnscoredRun,
    World,
    fastest_threads,
    guarded,
    null_runs,
    read_labels,
    run_entries,
)
from leakscope.audit.result import Audit
from leakscope.audit.suite import Entry, Untested, plan_suite, unknown_defences
from leakscope.audit.target import Criterion, Subject, Target, UntestedError, check_batch, make_client
from leakscope.audit.truths import ask_truth, batch_of_truth, scaling_of_captures
from leakscope.audit.unscored import unscored_runs
from leakscope.audit.verdict import Measures, grade, measure
from leakscope.clients import Client, tell_defences
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.types import Batch, Knowledge, Observation, Shares, make_batch
from leakscope.models import find_shortfall
from leakscope.store.captures import list_captures
from leakscope.sweep.engines.contract import torch_threads


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What is being audited and how: the target, the time, the seed, and what was noted on the way."""

    target: Target
    budget: Budget
    minutes: float
    seed: int
    notes: list[str]
    untested: list[Untested]


def audit_captures(
    directory: Path,
    target: Target,
    *,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    seed: int = 0,
    tell: Tell = lambda _: None,
) -> Audit:
    """Return the audit of captured updates; every capture is checked first, all of them before any is attacked."""
    clients, seed = check_numbers(clients, seed)
    request = Request(target, start_budget(minutes), minutes, seed, [], [])
    try:
        world, known = _gathered(directory, request, clients)
    except UntestedError as error:
        request.untested.append(Untested("these captures", str(error)))
        return _unscored(request, [], [])
    local = world.client.local
    entries, untested = plan_suite(
        world.subject.model,
        world.knowledge,
        world.informed,
        steps=None if local is None else local.steps(world.knowledge.samples),
        shares=world.observation.shares,
        unmatched=world.subject.unmatched,
        unknown=unknown_defences(world.client, world.observation),
    )
    request.untested.extend(untested)
    if not known:
        return _unscored(request, *unscored_runs(world, entries, request.budget, tell))
    return _scored(request, world, entries, tell)


def _gathered(directory: Path, request: Request, clients: int) -> tuple[World, bool]:
    """Return the world of the captures, and whether the truth behind them is known."""
    target, notes = request.target, request.notes
    loss = _loss(target.loss)
    model, inputs = model_of_captures(target, notes)
    client = make_client(target, Scaling(), loss)
    listed = [list_one(path, model, configured=client.local is not None) for path in list_captures(directory)]
    notes.append(f"{len(listed)} captures in {directory}")
    chosen = choose(listed, model, target, clients, notes, request.untested)
    samples, shares = chosen.samples, Shares(chosen.captures[0].shares)
    truth = ask_truth(chosen.captures, target, model, samples, notes)
    scaling = scaling_of_captures(target, inputs, None if truth is None else truth[0], notes)
    local = client.local or local_training(chosen, model, target, notes)
    client = replace(client, local=local, scaling=scaling)
    check_batch(model, client, samples)
    observation = observe_captures(chosen.captures, model, samples, shares)
    knowledge = Knowledge(
        input_shape=model.input_shape,
        classes=model.classes,
        samples=samples,
        loss=client.loss,
        scaling=scaling,
        local=client.local,
    )
    batch = None if truth is None else batch_of_truth(truth, scaling, model)
    seeds = tuple(request.seed * 100_000 + t for t in range(len(chosen.captures)))
    return _world(model, client, batch, observation, knowledge, seeds), truth is not None


def _loss(loss: Criterion) -> str:
    if not isinstance(loss, str):
        raise InputError("auditing captures needs the loss by name, such as 'cross_entropy'")
    return loss


def _world(
    model: Model,
    client: Client,
    truth: Batch | None,
    observation: Observation,
    knowledge: Knowledge,
    seeds: tuple[int, ...],
) -> World:
    """Return the world of the captures; where there is no truth its batch is empty pictures that nobody reads."""
    T, N = observation.trials, knowledge.samples
    blank = make_batch(
        torch.zeros(T, N, *model.input_shape), torch.zeros(T, N, dtype=torch.int64), classes=model.classes
    )
    batch = blank if truth is None else truth
    lacks = find_shortfall(model)
    unmatched = None if lacks is None else lacks.sentence
    subject = Subject(model, client, batch.inputs.flatten(0, 1), batch.labels.flatten(), N, (), unmatched)
    informed = tell_defences(knowledge, client, observation) if guarded(client) else None
    weights = observation.rounds[0].before
    return World(subject, client, batch, weights, seeds, observation, knowledge, informed, Execution(form="native"))


def _scored(request: Request, world: World, entries: Sequence[Entry], tell: Tell) -> Audit:
    """Return the audit of captures whose truth is known."""
    budget = request.budget
    reading = read_labels(world)
    with torch_threads(fastest_threads(world, entries)):
        done = run_entries(world, entries, Budget(0.9 * budget.seconds, budget.began, budget.clock), tell)
    nulls = null_runs(world.subject, world, request.seed)
    labels = reading if isinstance(reading, LabelReading) else None
    left_out = [*request.untested, *done.untested, *([reading] if isinstance(reading, Untested) else [])]
    return Audit(
        name=_name(request),
        grade=grade(done.runs, nulls, labels),
        measures=measure(done.runs, nulls, labels),
        runs=done.runs,
        nulls=tuple(nulls),
        labels=labels,
        untested=tuple(left_out),
        advice=None,
        notes=tuple(request.notes),
        world=world,
        minutes=request.minutes,
        seconds=budget.used,
        seed=request.seed,
        short=done.short,
    )


def _unscored(
    request: Request, runs: Sequence[UnscoredRun], failed: Sequence[Untested], short: Sequence[CutShort] = ()
) -> Audit:
    """Return the audit of captures whose truth nobody knows."""
    return Audit(
        name=_name(request),
        grade="unscored" if len(runs) > 1 else "untested",
        measures=Measures(),
        runs=(),
        nulls=(),
        labels=None,
        untested=(*request.untested, *failed),
        advice=None,
        notes=tuple(request.notes),
        world=None,
        minutes=request.minutes,
        seconds=request.budget.used,
        seed=request.seed,
        unscored=tuple(runs),
        short=tuple(short),
    )


def _name(request: Request) -> str:
    return f"{type(request.target.model).__name__}, captured"
