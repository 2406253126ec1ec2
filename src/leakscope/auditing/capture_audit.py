"""Audit of updates captured in a real federation, with or without the true data; the rounds of one client count once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from leakscope.auditing.attack_runs import (
    INTERRUPTED,
    check_updates,
    fastest_threads,
    null_runs,
    read_labels,
    run_entries,
    suite_of,
)
from leakscope.auditing.attempts import (
    Attempt,
    CutShort,
    UnscoredRun,
    find_cut,
    iterations_note,
    reconstruct,
    run_attempts,
)
from leakscope.auditing.capture_reader import (
    ask_truth,
    batch_of_truth,
    choose,
    list_one,
    local_training,
    model_of_captures,
    observe_captures,
    scaling_of_captures,
)
from leakscope.auditing.capture_rounds import (
    best_rounds,
    first_rounds,
    relative_mismatch,
    runs_of_clients,
    with_all_rounds,
)
from leakscope.auditing.chosen_attacks import Chosen, choose_attacks
from leakscope.auditing.criterion import captured_loss, captured_truth
from leakscope.auditing.limits import Budget, Pace, after_loading, check_numbers, start_budget
from leakscope.auditing.result import Audit
from leakscope.auditing.static.inspection import inspect_target
from leakscope.auditing.suite import Entry, Untested, plan_suite, unknown_defences
from leakscope.auditing.target import Target, UntestedError, check_batch, make_client
from leakscope.auditing.target_audit import CLIENTS, MINUTES, WHOLE_SHARE, left_out_statistics, scored_audit
from leakscope.auditing.tokens.captures import audit_token_captures
from leakscope.auditing.tokens.columns import unread_columns
from leakscope.auditing.tokens.network import NO_CHOICE, holds_tokens
from leakscope.auditing.verdict import Grade
from leakscope.clients import knowledge_of_defences
from leakscope.core import random
from leakscope.core.devices import find_device
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.progress import ProgressOption, Reporter, reporting
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take, to
from leakscope.core.types import IMAGE_RANK, Batch, Knowledge, Shares, make_batch
from leakscope.learning.losses import UserLoss
from leakscope.models import find_shortfall
from leakscope.play import AttackResult, Exposure, is_defended
from leakscope.store.captures import list_captures
from leakscope.sweep.engines.contract import torch_threads


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The target, time and seed of an audit, and the notes collected on the way."""

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
    progress: ProgressOption = None,
    minutes: float = MINUTES,
    clients: int = CLIENTS,
    attacks: Sequence[Chosen] | None = None,
    seed: int = 0,
) -> Audit:
    """Return the audit of captured updates; all are checked before any is attacked. `attacks` and `progress` are as in `audit`."""
    clients, seed = check_numbers(clients, seed)
    if target.aggregate != 1:
        raise InputError(
            "captures are what the server saw: give the examples of all its clients as examples, not aggregate"
        )
    budget = start_budget(minutes)
    with reporting(progress) as report:
        request = Request(target, after_loading(budget, report), minutes, seed, [], [])
        return _audited(Path(directory), request, clients, attacks, report)


def _audited(
    directory: Path, request: Request, clients: int, attacks: Sequence[Chosen] | None, report: Reporter
) -> Audit:
    try:
        report("captures", "reading and checking")
        if holds_tokens(request.target):
            return _audited_tokens(directory, request, clients, attacks, report)
        exposure, known, owners, steps, unplayed = _gathered(directory, request, clients)
        check_updates(exposure)
    except UntestedError as error:
        request.untested.append(Untested("these captures", str(error)))
        return replace(_unscored(request, [], []), static=inspect_target(request.target))
    lacks = find_shortfall(to(exposure.model, device="cpu"))
    suite = plan_suite(
        exposure.model,
        exposure.knowledge,
        exposure.informed,
        steps=steps,
        shares=exposure.observation.shares,
        unmatched=None if lacks is None else lacks.sentence,
        unknown=unknown_defences(exposure.client, exposure.observation),
        targets=exposure.batch.targets is not None,
        buffers=exposure.observation.rounds[0].buffers_after is not None,
    )
    entries, untested = choose_attacks(with_all_rounds(suite[0], owners), suite[1], attacks, exposure)
    unread = unread_columns(request.target.model, exposure)
    request.untested.extend((*untested, *left_out_statistics(exposure), *unread))
    if known:
        audit = _scored(request, exposure, entries, report, owners, unplayed)
    else:
        audit = _unscored(request, *unscored_runs(exposure, entries, request.budget, report, owners))
    return replace(audit, static=inspect_target(request.target, exposure.knowledge.samples, exposure))


def _audited_tokens(
    directory: Path, request: Request, clients: int, attacks: Sequence[Chosen] | None, report: Reporter
) -> Audit:
    if attacks is not None:
        raise InputError(NO_CHOICE)
    target, budget = request.target, request.budget
    return audit_token_captures(
        directory, target, budget, report, minutes=request.minutes, clients=clients, seed=request.seed
    )


class Gathered(NamedTuple):
    """The exposure of captures and what is known of them."""

    exposure: Exposure
    known: bool  # whether their true data is
    owners: Tensor  # the number of each capture's client
    steps: int | None  # local steps of a client; None: not known
    unplayed: str  # captures that were left out, in words


def _gathered(directory: Path, request: Request, clients: int) -> Gathered:
    """Return the captures to attack as an exposure."""
    target, notes = request.target, request.notes
    model, inputs = model_of_captures(target, notes)
    loss = captured_loss(target.loss, model, notes)
    client, target = make_client(target, Scaling(), loss), replace(target, loss=str(loss))
    listed = [list_one(path, model, configured=client.local is not None) for path in list_captures(directory)]
    notes.append(f"{len(listed)} captures in {directory}")
    chosen = choose(listed, model, target, clients, notes, request.untested)
    samples, shares = chosen.samples, Shares(chosen.captures[0].shares)
    truth = ask_truth(chosen.captures, target, model, samples, notes)
    if truth is not None and isinstance(loss, UserLoss):
        loss, truth = captured_truth(request.target.loss, loss, model, truth)
    scaling = scaling_of_captures(target, inputs, None if truth is None else truth[0], notes)
    if (local := client.local) is None:
        local, steps = local_training(chosen, model, target, notes, request.untested)
    else:
        steps = local.steps(samples)
    client = replace(client, local=local, scaling=scaling, loss=loss)
    check_batch(model, client, samples)
    observation = observe_captures(chosen.captures, model, samples, shares)
    knowledge = Knowledge(
        input_shape=model.input_shape,
        classes=model.classes,
        samples=samples,
        loss=loss,
        scaling=scaling,
        local=client.local,
    )
    if truth is None:
        batch = blank_batch(model, len(chosen.captures), samples)
    else:
        batch = batch_of_truth(truth, scaling, model, classes=isinstance(loss, str))
    seeds = tuple(request.seed * 100_000 + t for t in range(len(chosen.captures)))
    device = find_device(target.device, target.model.parameters())
    model, observation = to((model, observation), device=device)
    informed = knowledge_of_defences(knowledge, client, observation) if is_defended(client) else None
    exposure = Exposure(model, client, batch, seeds, observation, knowledge, informed)
    return Gathered(exposure, truth is not None, torch.tensor(chosen.owners), steps, chosen.unplayed)


def blank_batch(model: Model, clients: int, samples: int) -> Batch:
    """Return a batch of zeros as a placeholder for unknown true data; nothing reads it."""
    inputs = torch.zeros(clients, samples, *model.input_shape)
    return make_batch(inputs, torch.zeros(clients, samples, dtype=torch.int64), classes=model.classes)


def _scored(
    request: Request, exposure: Exposure, entries: Sequence[Entry], report: Reporter, owners: Tensor, unplayed: str
) -> Audit:
    """Return the audit of captures whose true data is known."""
    budget = request.budget
    attempts = [Attempt[AttackResult](entry, exposure.trials) for entry in entries]
    try:
        with torch_threads(fastest_threads(exposure, entries)):
            done = run_entries(exposure, attempts, replace(budget, seconds=WHOLE_SHARE * budget.seconds), report)
    except KeyboardInterrupt:  # attacks that had ended are kept
        done = suite_of(attempts, interrupted=True)
    runs = {run.name: run for run in runs_of_clients(exposure, done.runs, owners)}
    exposure = first_rounds(exposure, owners)
    cuts = [_cut_of_clients(cut, runs.get(cut.name), exposure.trials) for cut in done.short]
    left = "; ".join(filter(None, (done.unplayed, unplayed)))
    done = done._replace(runs=tuple(runs.values()), short=tuple(cut for cut in cuts if cut.working), unplayed=left)
    reading = read_labels(exposure, budget)
    pace = Pace(budget.clock, budget.end)
    none = exposure.batch.inputs[:0].flatten(0, 1), exposure.batch.labels[:0].flatten()  # every example is a client's
    nulls, left_out = ([], []) if done.interrupted else null_runs(exposure, none, pace)
    audit = scored_audit(
        _name(request),
        exposure,
        done,
        nulls,
        reading,
        (*request.untested, *left_out),
        budget,
        minutes=request.minutes,
        seed=request.seed,
    )
    return replace(audit, notes=tuple(request.notes))


def _cut_of_clients(cut: CutShort, run: AttackResult | None, clients: int) -> CutShort:
    """Return the same cut, found over captures, over clients: at work on those whose best round did not give everything."""
    left = clients if run is None else int((~(run.recovered | ~run.scores.scored).all(1)).sum())
    return cut._replace(working=left, clients=clients)


def _unscored(
    request: Request,
    runs: Sequence[UnscoredRun],
    failed: Sequence[Untested],
    short: Sequence[CutShort] = (),
    interrupted: bool = False,
) -> Audit:
    """Return the audit of captures whose true data is not known."""
    empty = Grade.INCONCLUSIVE if interrupted else Grade.UNTESTED
    return Audit(
        name=_name(request),
        grade=Grade.UNSCORED if any(run.name != "prior_only" for run in runs) else empty,
        interrupted=interrupted,
        unfinished=(INTERRUPTED,) if interrupted else (),
        untested=(*request.untested, *failed),
        notes=tuple(request.notes),
        minutes=request.minutes,
        seconds=request.budget.used,
        seed=request.seed,
        unscored=tuple(runs),
        short=tuple(short),
    )


def _name(request: Request) -> str:
    return f"{type(request.target.model).__name__}, captured"


def unscored_runs(
    exposure: Exposure, entries: Sequence[Entry], budget: Budget, report: Reporter, owners: Tensor
) -> tuple[list[UnscoredRun], list[Untested], list[CutShort], bool]:
    """Return the result of every attack (the null baseline last), what could not be run, what was cut short, whether it was interrupted."""

    def run(entry: Entry, iterations: int, pace: Pace) -> tuple[UnscoredRun, CutShort | None]:
        return _run(exposure, entry, iterations, pace, owners, report)

    attempts = [Attempt[UnscoredRun](entry, exposure.trials) for entry in entries]
    interrupted = False
    try:
        with torch_threads(fastest_threads(exposure, entries)):
            run_attempts(exposure, attempts, replace(budget, seconds=WHOLE_SHARE * budget.seconds), report, run)
    except KeyboardInterrupt:  # attacks that had ended are kept
        interrupted = True
    runs = [each.result for each in attempts if each.result is not None]
    number = int(owners.max()) + 1  # clients; one has a capture a round
    short = [
        each.cut._replace(working=min(each.cut.working, number), clients=number)
        for each in attempts
        if each.cut is not None and each.failure is None
    ]
    untested = [each.failure for each in attempts if each.failure is not None]
    if interrupted:
        return runs, untested, short, True
    nulls, left_out = null_runs(first_rounds(exposure, owners), pace=Pace(budget.clock, budget.end))
    for null in (each.reconstruction for each in nulls):
        runs.append(UnscoredRun("prior_only", "without the update", null, null.mismatch, structure(null.inputs), 0.0))
    return runs, [*untested, *left_out], short, False


def _run(
    exposure: Exposure, entry: Entry, iterations: int, pace: Pace, owners: Tensor, report: Reporter
) -> tuple[UnscoredRun, CutShort | None]:
    """Return one attack, which `pace` may end, and how it was cut short; of each client the best round."""
    began = time.perf_counter()
    guess = reconstruct(exposure, entry, iterations, pace, report)
    took = time.perf_counter() - began
    guess = take(guess, best_rounds(guess, owners))
    run = UnscoredRun(
        entry.name,
        iterations_note(entry, iterations, guess),
        guess,
        relative_mismatch(guess),
        structure(guess.inputs),
        took,
    )
    return run, find_cut(entry.name, guess, entry.most)


def structure(pictures: Tensor) -> Tensor:
    """Return total variation over that of the shuffled pixels (T x N x C x H x W -> T): about 1 for noise, below for images."""
    if pictures.ndim < IMAGE_RANK + 2:
        return torch.full((len(pictures),), torch.nan)  # not images
    shown = pictures.clamp(0, 1)
    order = random.permutation(random.fold(random.key(0), "structure"), shown[0, 0, 0].numel())
    mixed = shown.flatten(-2)[..., order].reshape(shown.shape)
    return _variation(shown) / _variation(mixed)  # NaN without contrast


def _variation(pictures: Tensor) -> Tensor:
    across, down = pictures.diff(dim=-1).abs(), pictures.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)
