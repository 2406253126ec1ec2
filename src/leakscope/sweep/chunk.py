"""One chunk played from end to end: clients, attack, scores; what comes out is ready to land.

Runs in any process that has leakscope: a chunk is plain data, and the objects are made from its settings there.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.analysis.convergence import image_curves
from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.aware import AveragedDropout, KnownDropout, aware, merge_rounds
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.exact.linear_system import LinearSystem
from leakscope.attacks.null import class_mean
from leakscope.attacks.recipes import prior_only
from leakscope.clients import Client, client_keys
from leakscope.core import random
from leakscope.core.record import COURSE, IMAGE_MSE, Record, SampleScore
from leakscope.core.tree import map_tensors, rows, take
from leakscope.core.types import Batch, Knowledge, Observation, Outcome, Reconstruction
from leakscope.core.version import __version__
from leakscope.metrics import DEFAULT_RULE, Scores, score
from leakscope.metrics.scoring import clean
from leakscope.models import draw_parameters
from leakscope.play.baselines import nearest_public, public_part
from leakscope.scenario import Problem
from leakscope.store import Landing
from leakscope.sweep.engines import reporter
from leakscope.sweep.insider import begun_from, is_insider, public_examples
from leakscope.sweep.merging import merge, shape_of
from leakscope.sweep.suiting import MisfitError
from leakscope.sweep.theory import theory_of
from leakscope.sweep.trials import Trial
from leakscope.sweep.world import World, batch_of, knowledge_of, load_data, make_world


@dataclass(frozen=True, slots=True)
class Chunk:
    """Trials that are run together, and how. `cells` holds (id, settings) of the cells that the trials' `cell` points to."""

    name: str
    trials: tuple[Trial, ...]
    cells: Mapping[int, tuple[str, Mapping[str, Any]]] = field(repr=False)
    form: str | None = None
    threads: int = 1
    device: str = "cpu"
    baseline: bool = False
    plan: int = 0
    work: str | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """A chunk on its way to the store, and the seconds of it that were not the attack's."""

    landing: Landing
    own_seconds: float


def play_chunk(chunk: Chunk) -> Played:
    """Return everything a chunk leaves behind."""
    began = time.perf_counter()
    if chunk.baseline:
        truth, made, attacked = _baseline(chunk)
    else:
        truth, made, attacked = _attack(chunk)
    scores = score(truth.inputs, truth.labels, made.inputs, made.labels, mask=truth.mask)
    tensors = _tensors(truth, made, scores) | _as_seen(chunk, truth, made) | _filmed(chunk, truth, made, scores)
    seconds = time.perf_counter() - began
    records = _records(chunk, truth, made, scores, seconds / len(chunk.trials))
    landing = Landing(chunk=chunk.name, plan=chunk.plan, records=records, tensors=tensors, seconds=seconds)
    return Played(landing, time.perf_counter() - began - attacked)


def _attack(chunk: Chunk) -> tuple[Batch, Reconstruction, float]:
    """Return truth, reconstruction, and the seconds that clients and attack took."""
    began = time.perf_counter()
    truth, observation, knowledge, world = observe(chunk)
    counted = [(cell, len(list(group))) for cell, group in itertools.groupby(t.cell for t in chunk.trials)]
    attack = merge([make_world(chunk.cells[cell][1]).attack for cell, _ in counted], [n for _, n in counted])
    settings = chunk.cells[chunk.trials[0].cell][1]
    attack = informed(begun(attack, chunk, truth), settings, knowledge, [t.seed for t in chunk.trials])
    precision = settings["precision"]
    execution = Execution(
        device=chunk.device,
        dtype=precision["dtype"],
        tf32=precision["tf32"],
        form=chunk.form,
        chunk=len(chunk.trials) * getattr(attack, "restarts", 1),
        directory=Path(chunk.work) if chunk.work else None,
        progress=reporter(chunk.name),
    )
    made = attack.run(world.model, observation, knowledge, [t.seed for t in chunk.trials], execution)
    if isinstance(attack, LinearSystem) and settings["client"]["local"] is None:
        theory = theory_of(world.model, played(chunk, defended=False, on_data=True), observation, knowledge)
        made = replace(made, learned={**made.learned, **theory})
    return truth, made, time.perf_counter() - began


def observe(chunk: Chunk) -> tuple[Batch, Observation, Knowledge, World]:
    """Return the private data of a chunk, what the server sees of it, what it is told, and the world of its first cell."""
    parts: list[tuple[Batch, Observation, Knowledge]] = []
    first = make_world(chunk.cells[chunk.trials[0].cell][1])
    for settings, group in _alike(chunk):
        world, client = make_world(settings), _merged_client(chunk, group)
        batch, observation = _play(client, world, group)
        _check_finite(chunk, group, observation)
        parts.append((batch, observation, knowledge_of(settings, world, client, batch, observation)))
    truth, observation, knowledge = map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])
    told = chunk.cells[chunk.trials[0].cell][1]["knowledge"]["defence"]
    if (
        told and not knowledge.policies
    ):  # transformations are drawn anew in every round: their mean is no update of any picture
        observation, knowledge = merge_rounds(observation, knowledge)
    return truth, observation, knowledge, first


def played(chunk: Chunk, *, defended: bool, on_data: bool | None = None) -> Observation:
    """Return what the clients of a chunk send with their defences, or would send without; `on_data` says so of those of the data."""
    parts = []
    for settings, group in _alike(chunk):
        client = _merged_client(chunk, group)
        if not defended:
            client = replace(client, defences=(), on_model=None)
        if not (defended if on_data is None else on_data):
            client = replace(client, on_data=None)
        parts.append(_play(client, make_world(settings), group)[1])
    return map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])


def _play(client: Client, world: World, group: Sequence[Trial]) -> tuple[Batch, Observation]:
    """Return the private data of some trials, and what a client sends of it from their weights."""
    batch, seeds = batch_of(world.data, world.part, [t.items for t in group]), [t.seed for t in group]
    weights = draw_parameters(world.model, world.init, random.key(seeds))
    return batch, client.observe(world.model, weights, batch, seeds)


def _check_finite(chunk: Chunk, group: Sequence[Trial], observation: Observation) -> None:
    """Raise, by its cell, if a client sent NaN or infinity: its training diverged, and nothing can be read from it."""
    sent = [value for seen in observation.rounds for value in seen.sent.values()]
    finite = torch.stack([rows(value.isfinite()).all(1) for value in sent]).all(0)
    if bool(finite.all()):
        return
    trial = group[int(finite.long().argmin())]
    cell, settings = chunk.cells[trial.cell]
    local = settings["client"]["local"]
    what = "gradient holds" if local is None else "local training ends in"
    said = f"the {what} NaN or infinity (client {trial.number}, seed {trial.seed})"
    if local is None:
        raise MisfitError(Problem(("client",), f"{said}: the first weights may be too large"), cell)
    path = ("client", "local", "rate")
    raise MisfitError(Problem(path, f"{said}: a smaller rate than {local['rate']:g} may help"), cell)


def begun(attack: Attack, chunk: Chunk, truth: Batch) -> Attack:
    """Return the attack with the public examples it begins from, where it is an insider's."""
    if not is_insider(attack):
        return attack
    first, pictures = 0, []
    for settings, group in _alike(chunk):
        world, labels = make_world(settings), truth.labels[first : first + len(group)]
        pictures.append(public_examples(world.data, world.part, labels, [t.seed for t in group]))
        first += len(group)
    return begun_from(attack, torch.cat(pictures))


def informed(attack: Attack, settings: Mapping[str, Any], knowledge: Knowledge, seeds: Sequence[int]) -> Attack:
    """Return the attack as one who was told of the defences runs it, where the cell says so."""
    if not settings["knowledge"]["defence"] or not isinstance(attack, Matching):
        return attack
    made = aware(attack, knowledge, simulate=settings["client"]["local"] is not None)
    if not settings["model"].get("dropout"):
        return made
    if settings["knowledge"]["dropout"]:
        return replace(made, simulate=KnownDropout(client_keys(seeds), made.simulate))
    return replace(made, simulate=AveragedDropout(inner=made.simulate))


def _alike(chunk: Chunk) -> Iterator[tuple[Mapping[str, Any], list[Trial]]]:
    """Yield runs of trials whose clients differ in nothing but strengths, with the settings of the first of each."""

    def key(trial: Trial) -> str:
        return client_key(chunk.cells[trial.cell][1])

    for _, group in itertools.groupby(chunk.trials, key=key):
        alike = list(group)
        yield chunk.cells[alike[0].cell][1], alike


def client_key(settings: Mapping[str, Any]) -> str:
    """Return what of a cell must be equal for its clients to train as one batch."""
    world = make_world(settings)
    data = [settings["data"][name] for name in ("name", "part", "size")]
    plain = (data, settings["weights"], settings["model"])
    return json.dumps(plain, sort_keys=True) + shape_of(world.client)


def _merged_client(chunk: Chunk, group: Sequence[Trial]) -> Client:
    counted = [(cell, len(list(same))) for cell, same in itertools.groupby(t.cell for t in group)]
    return merge([make_world(chunk.cells[cell][1]).client for cell, _ in counted], [n for _, n in counted])


def _baseline(chunk: Chunk) -> tuple[Batch, Reconstruction, float]:
    began = time.perf_counter()
    settings = chunk.cells[chunk.trials[0].cell][1]
    data = load_data(settings["data"]["name"], settings["data"]["size"])
    truth = batch_of(data, settings["data"]["part"], [t.items for t in chunk.trials])
    public, labels = public_part(data, settings["data"]["part"])
    scaling = data.statistics if settings["data"]["scaling"] == "statistics" else data.scaling
    seeds = [t.seed for t in chunk.trials]
    knowledge = Knowledge(data.input_shape, data.classes, truth.samples, scaling=scaling, labels=truth.labels)
    kind = settings["attack"]["name"]
    if kind == "class_mean":
        made = class_mean(public, labels, classes=data.classes).guess(knowledge, truth.trials)
    elif kind == "prior_only":
        made = prior_only().guess(knowledge, seeds)
    else:
        made = nearest_public(truth, public, labels, classes=data.classes).reconstruction
    return truth, made, time.perf_counter() - began


def _bytes(pictures: Tensor) -> Tensor:
    return (clean(pictures) * 255).round().to(torch.uint8)


def _tensors(truth: Batch, made: Reconstruction, scores: Scores) -> dict[str, Tensor]:
    """Return what is kept of each trial: the result as it is, and the way there as bytes for people to look at."""
    return {
        "truth": truth.inputs.contiguous(),
        "inputs": made.inputs.contiguous(),
        "labels": made.labels.contiguous(),
        "pairing": scores.pairing.contiguous(),
        "start": _bytes(made.start),
        "snapshots": _bytes(made.snapshots),
        "snapshots_at": made.snapshots_at.to(torch.int32).contiguous(),
        "trace": made.trace.to(torch.float32).contiguous(),
        "trace_at": made.trace_at.to(torch.int32).contiguous(),
        **{f"{COURSE}{name}": course.to(torch.float32).contiguous() for name, course in made.courses.items()},
    }


def _as_seen(chunk: Chunk, truth: Batch, made: Reconstruction) -> dict[str, Tensor]:
    """Return the pictures as the clients' networks saw them, and as the attack takes them to; nothing for untouched ones."""
    if chunk.baseline or all(settings["client"]["on_data"] is None for _, settings in chunk.cells.values()):
        return {}
    first, parts = 0, []
    for settings, group in _alike(chunk):
        own = take(truth, slice(first, first + len(group)))
        parts.append(make_world(settings).client.transformed(own, [t.seed for t in group]).inputs)
        first += len(group)
    guess = made.inputs if made.seen is None else made.seen
    return {"transformed": torch.cat(parts).contiguous(), "seen": guess.contiguous()}


def _filmed(chunk: Chunk, truth: Batch, made: Reconstruction, scores: Scores) -> dict[str, Tensor]:
    """Return the image MSE at the snapshots, from guesses that are not yet bytes, where the attack filmed its end."""
    if not chunk.cells[chunk.trials[0].cell][1]["attack"].get("film_end"):
        return {}
    curves = image_curves(truth.inputs, made.snapshots, scores.pairing, scores.scored)
    return {IMAGE_MSE: curves.to(torch.float32).contiguous()}


def _records(chunk: Chunk, truth: Batch, made: Reconstruction, scores: Scores, seconds: float) -> tuple[Record, ...]:
    recovered = DEFAULT_RULE.recovered(scores)
    return tuple(
        Record(
            trial=trial.id,
            cell=chunk.cells[trial.cell][0],
            number=trial.number,
            seed=trial.seed,
            items=trial.items,
            outcome=Outcome(int(made.outcome[row])).name.lower(),
            iterations=int(made.iterations[row]),
            evaluations=int(made.evaluations[row]),
            mismatch=_number(made.mismatch[row]),
            label_overlap=None if scores.label_overlap is None else _number(scores.label_overlap[row]),
            seconds=seconds,
            version=__version__,
            samples=_samples(row, truth, made, scores, recovered),
            learned={name: float(value[row]) for name, value in made.learned.items() if bool(value[row].isfinite())},
        )
        for row, trial in enumerate(chunk.trials)
    )


def _samples(
    row: int, truth: Batch, made: Reconstruction, scores: Scores, recovered: Tensor
) -> tuple[SampleScore, ...]:
    correct = scores.label_correct
    return tuple(
        SampleScore(
            sample=sample,
            label=int(truth.labels[row, sample]),
            guess=int(made.labels[row, scores.pairing[row, sample]]),
            mse=float(scores.mse[row, sample]),
            psnr=float(scores.psnr[row, sample]),
            ssim=_number(scores.ssim[row, sample]),
            label_correct=None if correct is None else bool(correct[row, sample]),
            recovered=bool(recovered[row, sample]),
            finite=bool(scores.finite[row, sample]),
        )
        for sample in range(truth.samples)
        if bool(scores.scored[row, sample])
    )


def _number(value: Tensor) -> float | None:
    return float(value) if bool(torch.isfinite(value)) else None


def on(chunk: Chunk, *, plan: int, work: Path | None) -> Chunk:
    """Return the chunk with the plan it belongs to and a place for its scratch."""
    return replace(chunk, plan=plan, work=str(work / f"{plan}-{chunk.name}") if work else None)
