"""Running one chunk: clients, attack, scores, and the result ready to store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from leakscope.analysis.convergence import image_curves
from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.aware import AveragedDropout, KnownDropout, aware, merge_rounds
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import too_large
from leakscope.attacks.exact.linear_system import LinearSystem
from leakscope.clients import Client, client_keys
from leakscope.core import random
from leakscope.core.record import IMAGE_MSE, Cell
from leakscope.core.tree import map_tensors, rows, take
from leakscope.core.types import Batch, Knowledge, Observation
from leakscope.kernels.heap import give_back
from leakscope.kernels.memory import is_out_of_memory
from leakscope.metrics import Context
from leakscope.models import draw_parameters
from leakscope.play import AttackResult, Exposure, expose, join
from leakscope.play import attack as run_attack
from leakscope.play.dishonest import expose_manipulated
from leakscope.play.exposure import with_places
from leakscope.scenario import Problem
from leakscope.scenario.cell import CellSettings, read_baseline, read_settings
from leakscope.servers import Manipulation
from leakscope.store import Landing
from leakscope.sweep.baseline_guesses import play_baseline
from leakscope.sweep.chunk_records import EMPTY, theory_of, trial_records, trial_tensors, with_metrics
from leakscope.sweep.engines import reporter
from leakscope.sweep.fit_checks import MisfitError
from leakscope.sweep.merging import merge, shape_of
from leakscope.sweep.metric_context import metric_context
from leakscope.sweep.objects import (
    batch_of,
    begun_from,
    client_of,
    data_of,
    is_insider,
    network_of,
    public_examples,
    public_images,
)
from leakscope.sweep.trials import Trial


@dataclass(frozen=True, slots=True)
class Chunk:
    """Trials that are run together, and how. `cells` maps each trial's `cell` to its settings."""

    name: str
    trials: tuple[Trial, ...]
    cells: Mapping[int, Cell] = field(repr=False)
    form: str | None = None
    threads: int = 1
    device: str = "cpu"
    baseline: bool = False
    plan: int = 0
    work: str | None = None

    @property
    def seeds(self) -> list[int]:
        """Return the seed of every trial."""
        return [trial.seed for trial in self.trials]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics beside those of every run."""
        plain = self.cells[self.trials[0].cell].settings
        return (read_baseline(plain) if self.baseline else read_settings(plain)).metrics

    def settings(self, trial: Trial | None = None) -> CellSettings:
        """Return the settings of a trial's cell; of the first trial's if none is given."""
        return read_settings(self.cells[(trial or self.trials[0]).cell].settings)


@dataclass(frozen=True, slots=True)
class PlayedChunk:
    """A finished chunk, and the seconds of it not spent on the attack."""

    landing: Landing
    overhead_seconds: float


def play_chunk(chunk: Chunk) -> PlayedChunk:
    """Return the records and tensors of a chunk; where memory runs out outside the attack, one half is played after the other."""
    try:
        return _played(chunk)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(chunk.trials) < 2:
            raise too_large(chunk.device) from error
    give_back()
    middle = len(chunk.trials) // 2
    halves = [
        play_chunk(replace(chunk, trials=part, work=None)) for part in (chunk.trials[:middle], chunk.trials[middle:])
    ]
    first, second = (half.landing for half in halves)
    landing = replace(
        first,
        records=first.records + second.records,
        tensors={name: joined(value, second.tensors[name]) for name, value in first.tensors.items()},
        seconds=first.seconds + second.seconds,
    )
    return PlayedChunk(landing, sum(half.overhead_seconds for half in halves))


def _played(chunk: Chunk) -> PlayedChunk:
    began = time.perf_counter()
    truth, result = _guessed(chunk) if chunk.baseline else _attacked(chunk)
    attacked = time.perf_counter() - began
    result = with_metrics(chunk.metrics, truth, result, _metric_context(chunk, truth))
    tensors = trial_tensors(truth, result) | _as_seen(chunk, truth, result) | _filmed(chunk, truth, result)
    seconds = time.perf_counter() - began
    ids = {place: cell.id for place, cell in chunk.cells.items()}
    records = trial_records(chunk.trials, ids, truth, result, seconds / len(chunk.trials))
    landing = Landing(chunk=chunk.name, plan=chunk.plan, records=records, tensors=tensors, seconds=seconds)
    return PlayedChunk(landing, time.perf_counter() - began - attacked)


def _metric_context(chunk: Chunk, truth: Batch) -> Context | None:
    if chunk.baseline:
        data = read_baseline(chunk.cells[chunk.trials[0].cell].settings).data
        return metric_context(chunk.metrics, data, truth, ())
    trials = [(chunk.settings(trial), trial.seed) for trial in chunk.trials]
    return metric_context(chunk.metrics, chunk.settings().data, truth, trials)


def _guessed(chunk: Chunk) -> tuple[Batch, AttackResult]:
    """Return the private batch and the scores of a null baseline."""
    settings = read_baseline(chunk.cells[chunk.trials[0].cell].settings)
    return play_baseline(settings, [trial.items for trial in chunk.trials], chunk.seeds)


def _attacked(chunk: Chunk) -> tuple[Batch, AttackResult]:
    """Return the private batch and the attack's result."""
    settings = chunk.settings()
    exposure = expose_chunk(chunk)
    knowledge = exposure.known(informed=True)
    method = informed(begun(_merged_attack(chunk), chunk, exposure.batch), settings, knowledge, chunk.seeds)
    execution = Execution(
        device=chunk.device,
        dtype=settings.precision.dtype,
        tf32=settings.precision.tf32,
        form=chunk.form,
        chunk=len(chunk.trials) * getattr(method, "attempts", 1),
        directory=Path(chunk.work) if chunk.work else None,
        progress=reporter(chunk.name),
    )
    result = run_attack(exposure, method, informed=True, execution=execution)
    if isinstance(method, LinearSystem) and settings.client.local is None:
        clean = observe_chunk(chunk, defended=False, on_data=True)
        theory = theory_of(exposure.model, clean, exposure.observation, knowledge)
        guess = result.reconstruction
        result = replace(result, reconstruction=replace(guess, learned={**guess.learned, **theory}))
    return exposure.batch, result


def expose_chunk(chunk: Chunk) -> Exposure:
    """Return the exposure of a chunk's clients; network and client are those of its first cell."""
    exposures = []
    for settings, group in _alike(chunk):
        model, batch, seeds = network_of(settings), _batch(settings, group), [trial.seed for trial in group]
        weights = draw_parameters(model, settings.weights, random.key(seeds))
        known = settings.knowledge
        if isinstance(settings.attack, Manipulation):
            public = public_images(settings)
            client, given = _merged_client(chunk, group), (weights, batch, public, seeds)
            exposure = expose_manipulated(
                settings.attack, model, client, *given, labels=known.labels, local=known.local
            )
            _check_finite(chunk, group, exposure.observation)
            exposures.append(exposure)
            continue
        exposure = expose(
            model,
            _merged_client(chunk, group),
            weights,
            batch,
            seeds,
            labels=known.labels,
            local=known.local,
            informed=known.defence,
            norm=known.norm,
        )
        _check_finite(chunk, group, exposure.observation)
        exposures.append(exposure)
    exposure, _ = with_places(join(exposures), data_of(chunk.settings().data).padding)
    if exposure.informed is None or exposure.informed.policies:
        return exposure  # transformations differ between rounds, so the mean update belongs to no image
    observation, facts = merge_rounds(exposure.observation, exposure.informed)
    return replace(exposure, observation=observation, informed=facts)


def observe_chunk(chunk: Chunk, *, defended: bool, on_data: bool | None = None) -> Observation:
    """Return what the clients send with or without defences; `on_data` overrides `defended` for defences on the data."""
    parts = []
    for settings, group in _alike(chunk):
        client = _merged_client(chunk, group)
        if not defended:
            client = replace(client, defences=(), on_model=None)
        if not (defended if on_data is None else on_data):
            client = replace(client, on_data=None)
        model, seeds = network_of(settings), [trial.seed for trial in group]
        weights = draw_parameters(model, settings.weights, random.key(seeds))
        parts.append(client.observe(model, weights, _batch(settings, group), seeds))
    return map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])


def _batch(settings: CellSettings, group: Sequence[Trial]) -> Batch:
    return batch_of(data_of(settings.data), settings.data.part, [trial.items for trial in group])


def _check_finite(chunk: Chunk, group: Sequence[Trial], observation: Observation) -> None:
    """Raise an error naming the cell if a client sent NaN or infinity: its training diverged, so there is nothing to attack."""
    finite = _finite(observation)
    if bool(finite.all()):
        return
    trial = group[int(finite.long().argmin())]
    cell, client = chunk.cells[trial.cell].id, chunk.settings(trial).client
    local, who = client.local, f"NaN or infinity (client {trial.number}, seed {trial.seed})"
    if client.defences and bool(_finite(observe_chunk(chunk, defended=False, on_data=True)).all()):
        raise MisfitError(Problem(("defences",), f"the defended update holds {who}: a weaker defence may help"), cell)
    message = f"the {'gradient holds' if local is None else 'local training ends in'} {who}"
    if local is None:
        raise MisfitError(Problem(("client",), f"{message}: the first weights may be too large"), cell)
    path = ("client", "local", "rate")
    raise MisfitError(Problem(path, f"{message}: a smaller rate than {local.rate:g} may help"), cell)


def _finite(observation: Observation) -> Tensor:
    """Return for each trial whether all it sent is finite."""
    sent = [value for seen in observation.rounds for value in seen.sent.values()]
    return torch.stack([rows(value.isfinite()).all(1) for value in sent]).all(0)


def begun(attack: Attack, chunk: Chunk, truth: Batch) -> Attack:
    """Return an insider attack with its public start examples; any other attack unchanged."""
    if not is_insider(attack):
        return attack
    images: list[Tensor] = []
    for settings, group, part in _parts(chunk, truth):
        examples = public_examples(data_of(settings.data), settings.data.part, part.labels, [t.seed for t in group])
        images.append(examples)
    return begun_from(attack, torch.cat(images))


def informed(attack: Attack, settings: CellSettings, knowledge: Knowledge, seeds: Sequence[int]) -> Attack:
    """Return the attack as an attacker who knows the defences runs it, if the cell says so."""
    if not settings.knowledge.defence or not isinstance(attack, Matching):
        return attack
    aware_attack = aware(attack, knowledge, simulate=settings.client.local is not None)
    if not settings.model.drops:
        return aware_attack
    if settings.knowledge.dropout:
        return replace(aware_attack, simulate=KnownDropout(client_keys(seeds), aware_attack.simulate))
    return replace(aware_attack, simulate=AveragedDropout(inner=aware_attack.simulate))


def _alike(chunk: Chunk) -> Iterator[tuple[CellSettings, list[Trial]]]:
    """Yield runs of consecutive trials whose clients differ only in strengths, with the settings of the first."""
    for _, group in itertools.groupby(chunk.trials, key=lambda trial: client_key(chunk.settings(trial))):
        alike = list(group)
        yield chunk.settings(alike[0]), alike


def _parts(chunk: Chunk, truth: Batch) -> Iterator[tuple[CellSettings, list[Trial], Batch]]:
    """Yield the runs of `_alike` with their part of the private batch."""
    first = 0
    for settings, group in _alike(chunk):
        yield settings, group, take(truth, slice(first, first + len(group)))
        first += len(group)


def client_key(settings: CellSettings) -> str:
    """Return the part of a cell that must be equal for its clients to train as one batch."""
    chosen = settings.data
    data = (chosen.name, chosen.part, chosen.size, chosen.length, chosen.words, chosen.shortest)
    return repr((data, settings.weights, settings.model)) + shape_of(client_of(settings))


def _counted(trials: Sequence[Trial]) -> tuple[list[Trial], list[int]]:
    """Return the first trial of each run of equal cells, and the length of each run."""
    groups = [list(group) for _, group in itertools.groupby(trials, key=lambda trial: trial.cell)]
    return [group[0] for group in groups], [len(group) for group in groups]


def _merged_client(chunk: Chunk, group: Sequence[Trial]) -> Client:
    firsts, lengths = _counted(group)
    return merge([client_of(chunk.settings(trial)) for trial in firsts], lengths)


def _merged_attack(chunk: Chunk) -> Attack:
    firsts, lengths = _counted(chunk.trials)
    return merge([chunk.settings(trial).attack for trial in firsts], lengths)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Return the trials of two halves; where one half found more sentences, the other is filled up with none."""
    if first.ndim > 1 and first.shape[1] != second.shape[1]:
        most = max(first.shape[1], second.shape[1])
        first, second = (
            torch.cat([each, each.new_full((len(each), most - each.shape[1], *each.shape[2:]), EMPTY)], 1)
            for each in (first, second)
        )
    return torch.cat([first, second])


def _as_seen(chunk: Chunk, truth: Batch, result: AttackResult) -> dict[str, Tensor]:
    """Return the images as the clients' networks saw them and the attack's estimate of these; {} without a defence on the data."""
    if chunk.baseline or all(chunk.settings(trial).client.on_data is None for trial in _counted(chunk.trials)[0]):
        return {}
    parts = [
        client_of(settings).transformed(part, [trial.seed for trial in group]).inputs
        for settings, group, part in _parts(chunk, truth)
    ]
    guess = result.reconstruction
    seen = guess.inputs if guess.seen is None else guess.seen
    return {"transformed": torch.cat(parts).contiguous(), "seen": seen.contiguous()}


def _filmed(chunk: Chunk, truth: Batch, result: AttackResult) -> dict[str, Tensor]:
    """Return the image MSE at the snapshots, before rounding to bytes, if the attack recorded its last iterations."""
    if chunk.baseline or not chunk.settings().recipe.settings.get("film_end"):
        return {}
    scores = result.scores
    curves = image_curves(truth.inputs, result.reconstruction.snapshots, scores.pairing, scores.scored)
    return {IMAGE_MSE: curves.to(torch.float32).contiguous()}


def on(chunk: Chunk, *, plan: int, work: Path | None) -> Chunk:
    """Return the chunk with its plan's number and a scratch directory."""
    return replace(chunk, plan=plan, work=str(work / f"{plan}-{chunk.name}") if work else None)
