"""One client, attacked in several ways: the results a page tells. The demo and `peek` both end here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Progress
from leakscope.clients import Client, told
from leakscope.core.model import Model
from leakscope.core.tree import Tree, take
from leakscope.core.types import Batch, Knowledge, Observation, Reconstruction
from leakscope.defences import GaussianNoise
from leakscope.metrics import DEFAULT_RULE, Scores, Summary, score, summarise

NOISE_LEVELS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)

Tell = Callable[[str, Progress], None]


@dataclass(frozen=True, slots=True)
class AttackRun:
    """One attack on all trials, scored against the truth."""

    name: str
    note: str
    reconstruction: Reconstruction
    scores: Scores
    summary: Summary
    seconds: float

    @property
    def recovered(self) -> Tensor:
        """Return which samples count as recovered (T x N)."""
        return DEFAULT_RULE.recovered(self.scores)


@dataclass(frozen=True, slots=True)
class NoiseRun:
    """The same pictures attacked under every noise level, all levels in one batch."""

    sigmas: tuple[float, ...]
    truths: Batch
    runs: tuple[AttackRun, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Speed:
    """What the run took, and what the usual loop would take at the rate measured in the same run."""

    attacks: int
    evaluations: int
    seconds: float
    loop_seconds: float
    loop_evaluations_timed: int

    def line(self) -> str:
        """Return the sentence for people."""
        return (
            f"{self.attacks} attacks in {self.seconds:.0f} s; the usual loop here: {self.loop_seconds:.0f} s "
            f"({self.evaluations:,} evaluations at the rate of {self.loop_evaluations_timed} timed in this run)"
        )


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a page shows."""

    batch: Batch
    names: tuple[str, ...]
    update: Tree
    exact: AttackRun | None
    exact_batch: Batch | None
    attacks: tuple[AttackRun, ...]
    noise: NoiseRun | None
    speed: Speed | None
    seeds: tuple[int, ...]
    seconds: float
    baselines: tuple[AttackRun, ...] = ()
    invented: frozenset[int] = frozenset()  # trials whose label nobody knows; it was made up so that there is an update


def play(
    name: str,
    note: str,
    attack: Attack,
    model: Model,
    observation: Observation,
    knowledge: Knowledge,
    truth: Batch,
    seeds: Sequence[int],
    execution: Execution,
    tell: Tell | None = None,
) -> AttackRun:
    """Return one attack's run: the attack gets Observation and Knowledge, the truth only meets its result."""
    began = time.perf_counter()
    if tell is not None:
        execution = replace(execution, progress=lambda progress: tell(name, progress))
    made = attack.run(model, observation, knowledge, seeds, execution)
    seconds = time.perf_counter() - began
    return judged(name, note, made, truth, seconds)


def judged(name: str, note: str, made: Reconstruction, truth: Batch, seconds: float = 0.0) -> AttackRun:
    """Return a reconstruction scored against the truth."""
    scores = score(truth.inputs, truth.labels, made.inputs, made.labels, mask=truth.mask)
    summary = summarise(scores, outcomes=made.outcome, iterations=made.iterations)
    return AttackRun(name, note, made, scores, summary, seconds)


def without_labels_of(run: AttackRun, invented: frozenset[int]) -> AttackRun:
    """Return the run with its label rates over the other trials alone; None where there is no other."""
    scores, made = run.scores, run.reconstruction
    if scores.label_correct is None or not invented & set(range(scores.trials)):
        return run
    others = torch.tensor([t for t in range(scores.trials) if t not in invented], dtype=torch.int64)
    if not len(others):
        return replace(run, summary=replace(run.summary, label=None, label_set=None))
    part = summarise(take(scores, others), outcomes=made.outcome[others], iterations=made.iterations[others])
    return replace(run, summary=replace(run.summary, label=part.label, label_set=part.label_set))


def sweep_noise(
    attack: Attack,
    model: Model,
    client: Client,
    weights: Mapping[str, Tensor],
    batch: Batch,
    seeds: Sequence[int],
    execution: Execution,
    *,
    sigmas: Sequence[float] = NOISE_LEVELS,
    tell: Tell | None = None,
) -> NoiseRun:
    """Return the attack on every trial under every noise level; levels and trials are one batch."""
    T, L = batch.trials, len(sigmas)
    lanes = torch.arange(T).repeat(L)
    many = take(batch, lanes)
    noisy = replace(client, defences=(*client.defences, GaussianNoise(torch.tensor(sigmas).repeat_interleave(T))))
    each = [seeds[int(i)] for i in lanes]
    observation = noisy.observe(model, take(dict(weights), lanes), many, each)
    run = play("noise", "", attack, model, observation, told(model, client, many), many, each, execution, tell)
    runs = []
    for level, sigma in enumerate(sigmas):
        part = slice(level * T, (level + 1) * T)
        made, scores = take(run.reconstruction, part), take(run.scores, part)
        summary = summarise(scores, outcomes=made.outcome, iterations=made.iterations)
        runs.append(AttackRun(f"sigma {sigma:g}", "", made, scores, summary, run.seconds / L))
    return NoiseRun(tuple(float(s) for s in sigmas), batch, tuple(runs), run.seconds)
