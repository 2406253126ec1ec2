"""Running an attack on an exposure and scoring its result against the private batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Progress
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import take, to
from leakscope.core.types import Batch, Reconstruction
from leakscope.metrics import DEFAULT_RULE, Scores, Summary, score, summarise, whole_trials
from leakscope.play.exposure import Exposure

Report = Callable[[str, Progress], None]


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The reconstruction of all trials by one attack or null baseline, with its scores."""

    name: str
    note: str
    reconstruction: Reconstruction
    scores: Scores
    summary: Summary
    seconds: float

    __repr__ = short_repr

    @property
    def recovered(self) -> Tensor:
        """Return which samples count as recovered (T x N)."""
        return DEFAULT_RULE.recovered(self.scores)

    @property
    def all_recovered(self) -> Tensor:
        """Return of which trials every sample was recovered (T)."""
        return whole_trials(self.recovered, self.scores.scored)

    def select(self, trials: slice | Tensor) -> AttackResult:
        """Return the result for some of the trials, with a new summary."""
        reconstruction, scores = take(self.reconstruction, trials), take(self.scores, trials)
        return replace(self, reconstruction=reconstruction, scores=scores, summary=_summary(reconstruction, scores))


def attack(
    exposure: Exposure,
    method: Attack,
    *,
    name: str = "",
    note: str = "",
    informed: bool = False,
    execution: Execution | None = None,
    report: Report | None = None,
) -> AttackResult:
    """Return the result of an attack; the attack gets Observation and Knowledge, the truth only meets its result.

    Without an `execution` it runs where the update lies. `informed` runs the attacker who knows the defences.
    `report` gets the engine's progress under the attack's name.
    """
    name = name or method.name
    execution = Execution(device=str(exposure.device)) if execution is None else execution
    if report is not None:
        execution = replace(execution, progress=lambda progress: report(name, progress))
    began = time.perf_counter()
    reconstruction = reconstruct(exposure, method, execution, informed=informed)
    return judge(exposure.batch, reconstruction, name=name, note=note, seconds=time.perf_counter() - began)


def reconstruct(exposure: Exposure, method: Attack, execution: Execution, *, informed: bool = False) -> Reconstruction:
    """Return what an attack makes of an exposure on the device of `execution`; the result lies on the CPU."""
    seen = exposure.observation, exposure.known(informed=informed)
    observation, knowledge = to(seen, device=torch.device(execution.device))
    reconstruction = method.run(
        exposure.model.in_mode(knowledge.norm), observation, knowledge, list(exposure.seeds), execution
    )
    return to(reconstruction, device="cpu")


def judge(
    truth: Batch, reconstruction: Reconstruction, *, name: str = "", note: str = "", seconds: float = 0.0
) -> AttackResult:
    """Return a reconstruction scored against the truth; labels are not scored where a caller's own targets stand for them."""
    labels = reconstruction.labels if truth.targets is None else None
    scores = score(truth.inputs, truth.labels, reconstruction.inputs, labels, mask=truth.mask, within=DEFAULT_RULE.mse)
    return AttackResult(name, note, reconstruction, scores, _summary(reconstruction, scores), seconds)


def without_labels_of(result: AttackResult, unlabelled: frozenset[int]) -> AttackResult:
    """Return the result with label rates over the labelled trials only; None if no trial has a label."""
    trials = result.scores.trials
    if result.scores.label_correct is None or not unlabelled & set(range(trials)):
        return result
    labelled = torch.tensor([t for t in range(trials) if t not in unlabelled], dtype=torch.int64)
    if not len(labelled):
        return replace(result, summary=replace(result.summary, label=None, label_set=None))
    part = result.select(labelled).summary
    return replace(result, summary=replace(result.summary, label=part.label, label_set=part.label_set))


def _summary(reconstruction: Reconstruction, scores: Scores) -> Summary:
    return summarise(scores, outcomes=reconstruction.outcome, iterations=reconstruction.iterations)
