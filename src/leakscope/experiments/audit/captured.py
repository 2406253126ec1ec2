"""Auditing what a real federation sent: captured updates, with the truth if the user has it, without if not.

Every capture is a client. Those of the fewest examples are attacked, at most as many as asked for: they leak most. Without
truth nothing can be scored; what can be said is how well the guess explains the update, whether it looks like a picture,
and what the same attack makes of nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leakscope.analysis.inferring import infer
from leakscope.attacks.plan import Execution
from leakscope.attacks.recipes import prior_only
from leakscope.clients import Client, tell_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.core.types import (
    Batch,
    Knowledge,
    LocalTraining,
    Observation,
    Reconstruction,
    Round,
    Shares,
    make_batch,
)
from leakscope.experiments.audit.auditing import CLIENTS, MINUTES, Audit
from leakscope.experiments.audit.budget import Budget, iterations_within, start_budget
from leakscope.experiments.audit.playing import (
    LabelReading,
    Tell,
    UnscoredRun,
    World,
    fastest_threads,
    null_runs,
    read_labels,
    run_entries,
)
from leakscope.experiments.audit.suite import PICTURE_RANK, Entry, Untested, plan_suite
from leakscope.experiments.audit.target import (
    Criterion,
    Subject,
    Target,
    check_inputs,
    class_numbers,
    find_scaling,
    make_client,
    plain_module,
)
from leakscope.experiments.audit.verdict import Measures, grade, measure
from leakscope.experiments.engines.contract import torch_threads
from leakscope.models import from_module
from leakscope.store.captures import Capture, check_model, list_captures, read_capture

KEYS = {
    "rate": ("lr", "learning-rate", "learning_rate", "rate"),
    "epochs": ("local-epochs", "local_epochs", "epochs"),
    "batch_size": ("batch-size", "batch_size"),
}


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
    budget = start_budget(minutes)
    notes: list[str] = []
    model, scaling = _model(target, notes)
    listed = [_listed(path, model) for path in list_captures(directory)]
    notes.append(f"{len(listed)} captures in {directory}")
    client = make_client(target, scaling, _loss(target.loss))
    chosen, samples = _chosen(listed, model, target, clients, notes)
    local = client.local or _local(chosen[0], model, notes)
    shares = Shares(chosen[0].shares)
    observation = _observation(chosen, model, samples, shares)
    knowledge = Knowledge(
        input_shape=model.input_shape,
        classes=model.classes,
        samples=samples,
        loss=client.loss,
        scaling=scaling,
        local=local,
    )
    informed = tell_defences(knowledge, client, observation) if client.defences else None
    seeds = tuple(seed * 100_000 + t for t in range(len(chosen)))
    entries, untested = plan_suite(
        model, knowledge, informed, steps=None if local is None else local.steps(samples), shares=shares
    )
    truth = _truth(chosen, target, model, scaling, samples, notes)
    world = _world(model, replace(client, local=local), truth, observation, knowledge, informed, seeds, samples)
    if truth is None:
        return _unscored(target, world, entries, untested, notes, budget, minutes, seed, tell)
    reading = read_labels(world)
    with torch_threads(fastest_threads(world, entries)):
        runs, failed = run_entries(world, entries, Budget(0.9 * budget.seconds, budget.began, budget.clock), tell)
    nulls = null_runs(world.subject, world, seed)
    labels = reading if isinstance(reading, LabelReading) else None
    left_out = [*untested, *failed, *([reading] if isinstance(reading, Untested) else [])]
    return Audit(
        name=f"{type(target.model).__name__}, captured",
        grade=grade(runs, nulls, labels),
        measures=measure(runs, nulls, labels),
        runs=tuple(runs),
        nulls=tuple(nulls),
        labels=labels,
        untested=tuple(left_out),
        advice=None,
        notes=tuple(notes),
        world=world,
        minutes=minutes,
        seconds=budget.used,
        seed=seed,
    )


def _model(target: Target, notes: list[str]) -> tuple[Model, Scaling]:
    """Return the network and the scaling of its inputs."""
    module = plain_module(target.model, notes)
    shape, example, scaling = target.input_shape, None, Scaling()
    if target.inputs is not None:
        inputs = check_inputs(target.inputs, notes)
        scaling, _ = find_scaling(inputs, target.mean, target.std, notes)
        shape, example = tuple(inputs.shape[1:]), inputs[:2]
    elif target.mean is not None and target.std is not None:
        scaling = Scaling(target.mean, target.std)
    elif (target.mean is None) != (target.std is None):
        raise InputError("mean and std belong together: give both or neither")
    if shape is None:
        raise InputError("auditing captures needs the shape of an input: Target(input_shape=...) or a sample as inputs")
    return from_module(module, input_shape=shape, example=example), scaling


def _loss(loss: Criterion) -> str:
    if not isinstance(loss, str):
        raise InputError("auditing captures needs the loss by name, such as 'cross_entropy'")
    return loss


def _check(capture: Capture, model: Model) -> None:
    values = {**model.parameters, **model.buffers}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    given = {name: value for name, value in capture.before.items() if name in values or not _counter(name)}
    check_model(replace(capture, before=given), shapes, model.name, needed=frozenset(model.shared(model.parameters)))


def _counter(name: str) -> bool:
    """Return whether a name is one of batch norm's running statistics, which a replaced batch norm no longer has."""
    return name.rpartition(".")[2] in ("num_batches_tracked", "running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class _Listed:
    """A capture that was checked, without its tensors: there may be more than memory holds."""

    path: Path
    examples: int | None
    shares: str


def _listed(path: Path, model: Model) -> _Listed:
    capture = read_capture(path)
    _check(capture, model)
    return _Listed(path, capture.examples, capture.shares)


def _chosen(
    listed: Sequence[_Listed], model: Model, target: Target, most: int, notes: list[str]
) -> tuple[list[Capture], int]:
    """Return the captures of the fewest examples, at most so many, and that number of examples."""
    known = [item for item in listed if item.examples]
    if not known:
        first = read_capture(listed[0].path)
        guess = infer(model, first.before, first.sent, shares=Shares(first.shares)).samples
        samples = target.examples if guess.value is None else int(guess.value)
        notes.append(f"the captures do not say how many examples a client had: {samples} taken; inferred: {guess}")
        alike = [item for item in listed if item.shares == first.shares]
        return [read_capture(item.path) for item in alike[:most]], samples
    fewest = min(item.examples or 0 for item in known)
    alike = [item for item in known if item.examples == fewest and item.shares == known[0].shares][:most]
    if len(alike) < len(listed):
        notes.append(f"{len(alike)} of {len(listed)} captures were attacked: those of {fewest} examples, the fewest")
    return [read_capture(item.path) for item in alike], fewest


def _local(capture: Capture, model: Model, notes: list[str]) -> LocalTraining | None:
    """Return the local training that the server's own configuration tells; else one step that moves as far."""
    if capture.shares == "gradient":
        return None
    found = {
        field: next((capture.config[name] for name in names if name in capture.config), None)
        for field, names in KEYS.items()
    }
    if found["rate"] is None:
        guess = infer(model, capture.before, capture.sent, shares=Shares.WEIGHTS)
        notes.append(f"the learning rate was not told; inferred rate times steps: {guess.rate_times_steps}")
        notes.append(f"inferred local steps: {guess.steps}")
        return None if not guess.rate_times_steps.value else LocalTraining(rate=guess.rate_times_steps.value)
    batch = found["batch_size"]
    return LocalTraining(
        rate=float(found["rate"]),
        epochs=int(found["epochs"] or 1),
        batch_size=None if batch is None else int(batch),
    )


def _observation(captures: Sequence[Capture], model: Model, samples: int, shares: Shares) -> Observation:
    def stacked(like: Tree, trees: list[Tree]) -> Tree:
        return {
            name: torch.stack([tree.get(name, value).to(value.dtype) for tree in trees]) for name, value in like.items()
        }

    shared = model.shared(model.parameters)
    before = stacked(model.parameters, [capture.before for capture in captures])
    buffers = stacked(model.buffers, [capture.before for capture in captures])
    sent = stacked(shared, [capture.sent for capture in captures])
    return Observation((Round(before, buffers, sent),), shares, torch.full((len(captures),), samples))


def _truth(
    captures: Sequence[Capture], target: Target, model: Model, scaling: Scaling, samples: int, notes: list[str]
) -> Batch | None:
    """Return what the clients really held, where the target can tell it for all of them."""
    if target.truth is None:
        return None
    if any(capture.partition is None for capture in captures):
        notes.append("a capture does not say its partition: the truth could not be looked up")
        return None
    pictures, labels = [], []
    for capture in captures:
        x, y = target.truth(int(capture.partition or 0))
        x = check_inputs(x, [])
        if len(x) != samples or tuple(x.shape[1:]) != model.input_shape:
            raise InputError(
                f"truth({capture.partition}) must give {samples} inputs of shape {model.input_shape}, got {tuple(x.shape)}"
            )
        pictures.append(scaling.unscale(x, x.ndim - 1).clamp(0, 1))
        labels.append(class_numbers(y, len(x), model.classes, []))
    return make_batch(torch.stack(pictures), torch.stack(labels), classes=model.classes)


def _world(
    model: Model,
    client: Client,
    truth: Batch | None,
    observation: Observation,
    knowledge: Knowledge,
    informed: Knowledge | None,
    seeds: tuple[int, ...],
    samples: int,
) -> World:
    """Return the world of the captures; where there is no truth its batch is empty pictures that nobody reads."""
    T = observation.trials
    blank = make_batch(
        torch.zeros(T, samples, *model.input_shape), torch.zeros(T, samples, dtype=torch.int64), classes=model.classes
    )
    batch = blank if truth is None else truth
    subject = Subject(model, client, batch.inputs.flatten(0, 1), batch.labels.flatten(), samples, ())
    weights = observation.rounds[0].before
    execution = Execution(form="native")
    return World(subject, client, batch, weights, seeds, observation, knowledge, informed, execution)


# -- without the truth


def _unscored(
    target: Target,
    world: World,
    entries: Sequence[Entry],
    untested: list[Untested],
    notes: list[str],
    budget: Budget,
    minutes: float,
    seed: int,
    tell: Tell,
) -> Audit:
    runs: list[UnscoredRun] = []
    heavy = sum(entry.most is not None for entry in entries) or 1
    with torch_threads(fastest_threads(world, entries)):
        for entry in entries:
            tell(f"{entry.name}: {world.observation.trials} captures")
            try:
                runs.append(_run(world, entry, 0.9 * budget.seconds / heavy))
            except InputError as error:
                untested.append(Untested(entry.name, str(error)))
    labels = torch.zeros(world.observation.trials, world.knowledge.samples, dtype=torch.int64)
    null = prior_only().guess(replace(world.knowledge, labels=labels), list(world.seeds))
    runs.append(UnscoredRun("prior_only", "without the update", null, null.mismatch, structure(null.inputs), 0.0))
    return Audit(
        name=f"{type(target.model).__name__}, captured",
        grade="unscored" if len(runs) > 1 else "untested",
        measures=Measures(),
        runs=(),
        nulls=(),
        labels=None,
        untested=tuple(untested),
        advice=None,
        notes=tuple(notes),
        world=None,
        minutes=minutes,
        seconds=budget.used,
        seed=seed,
        unscored=tuple(runs),
    )


def _run(world: World, entry: Entry, seconds: float) -> UnscoredRun:
    knowledge = world.informed if entry.informed and world.informed is not None else world.knowledge

    def attack(iterations: int) -> tuple[Reconstruction, float]:
        began = time.perf_counter()
        made = entry.make(iterations).run(
            world.subject.model, world.observation, knowledge, list(world.seeds), world.execution
        )
        return made, time.perf_counter() - began

    iterations = 0 if entry.most is None else iterations_within(seconds, lambda n: attack(n)[1], entry.most)
    made, took = attack(iterations)
    first = made.trace[:, 0].clamp_min(1e-12)
    left = made.mismatch / first if entry.most is not None else made.mismatch
    note = "no iterations" if entry.most is None else f"{iterations} iterations at most"
    return UnscoredRun(entry.name, note, made, left, structure(made.inputs), took)


def structure(pictures: Tensor) -> Tensor:
    """Return the total variation of guesses (T x N x C x H x W) over that of their own points shuffled; T values.

    1 for noise of any kind, below for pictures, whose neighbours are alike; NaN for what is no picture or has no contrast.
    """
    if pictures.ndim < PICTURE_RANK + 2:
        return torch.full((len(pictures),), torch.nan)
    shown = pictures.clamp(0, 1)
    order = random.permutation(random.fold(random.key(0), "structure"), shown[0, 0, 0].numel())
    mixed = shown.flatten(-2)[..., order].reshape(shown.shape)
    return _variation(shown) / _variation(mixed)


def _variation(pictures: Tensor) -> Tensor:
    across, down = pictures.diff(dim=-1).abs(), pictures.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)
