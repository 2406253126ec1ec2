"""Remedies that change the clients: what each attacks, why one is not tried, and how it is compared with its control."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from leakscope.attacks.attack import Matching
from leakscope.attacks.simulate import LocalSteps, simulator_kinds
from leakscope.auditing import advice
from leakscope.auditing.advice import advise
from leakscope.auditing.attack_runs import expose_clients, plan_exposure, run_with
from leakscope.auditing.changes import FEWEST, Aggregate, Change, LargerBatch, MoreSteps
from leakscope.auditing.limits import start_budget
from leakscope.auditing.remedies import Finding, find
from leakscope.auditing.remedy_trials import Trial, control_case, make_candidate
from leakscope.auditing.target import Subject, Target, make_subject
from leakscope.core.errors import InputError
from leakscope.core.progress import SILENT
from leakscope.core.types import LocalTraining, Outcome, Reconstruction
from leakscope.data import load
from leakscope.play import AttackResult, judge


def subject(number: int = 64, **changed: Any) -> Subject:
    data = load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    inputs, labels = data.pictures("train", range(number)), torch.as_tensor(data.labels("train", range(number)))
    return make_subject(Target(**({"model": model, "inputs": inputs, "labels": labels} | changed)))


@pytest.mark.parametrize(
    ("change", "samples", "steps"), [(Aggregate(4), 8, 1), (LargerBatch(4), 8, 1), (MoreSteps(4), 2, 4)]
)
def test_a_change_is_attacked_as_the_clients_would_be(change: Change, samples: int, steps: int) -> None:
    trial = Trial(subject(examples=2, client=LocalTraining(rate=0.1, batch_size=2)), 8, 0)
    candidate = make_candidate(trial, "change", "", change, "cpl")
    exposure = candidate.case.exposure
    assert (exposure.trials, exposure.batch.samples) == (FEWEST, samples)
    assert exposure.knowledge.local is not None
    assert exposure.knowledge.local.steps(samples) == steps
    assert candidate.knows
    attack = candidate.case.entry.make(3)
    assert isinstance(attack, Matching)
    assert (LocalSteps in simulator_kinds(attack.simulate)) is isinstance(change, MoreSteps)


@pytest.mark.parametrize(("change", "number"), [(Aggregate(4), 31), (LargerBatch(4), 31), (MoreSteps(4), 64)])
def test_a_change_that_cannot_be_tried_says_why(change: Change, number: int) -> None:
    with pytest.raises(InputError):
        change.apply(subject(number, examples=2))


def result_of(batch: Any, hits: int) -> AttackResult:
    """Return a run that recovers the first examples of a batch and nothing else."""
    guess = batch.inputs.clone()
    guess.flatten(0, 1)[hits:] = 0.5
    T = batch.trials
    ones = torch.ones(T, dtype=torch.int64)
    zeros = torch.zeros(T, 1)
    made = Reconstruction(
        guess, batch.labels, guess, zeros[:, 0], ones, ones, torch.full((T,), int(Outcome.EXHAUSTED)), zeros,
        ones[:, None], guess[:, None], ones[:, None],
    )  # fmt: skip
    return judge(batch, made)


@pytest.mark.parametrize(("hits", "finding"), [(0, Finding.HELPS), (16, Finding.USELESS), (13, Finding.CHANCE)])
def test_other_clients_are_compared_by_their_intervals(hits: int, finding: Finding) -> None:
    alone, summed = subject(), Aggregate(4).apply(subject())
    control = result_of(expose_clients(alone, 8, 0).batch, 8)
    run = result_of(expose_clients(summed, FEWEST, 0).batch, hits)
    assert find(run, control, whole=True, knows=True) is finding


def test_an_audit_tries_the_changes_and_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[tuple[str, str, Change]] = [("summed", "4", Aggregate(4)), ("steps", "4", MoreSteps(4))]
    monkeypatch.setattr(advice, "remedies_for", lambda _: changes)
    exposed = subject()
    exposure = expose_clients(exposed, 4, 0)
    entries = {entry.name: entry for entry in plan_exposure(exposure)[0]}
    cpl = run_with(exposure, entries["cpl"], 40)
    made = advise(exposed, exposure, [cpl], start_budget(1.0), SILENT, clients=4, seed=0)
    skipped = dict(made.skipped)
    assert "LocalTraining" in skipped["steps (4)"]
    tried = advice.tried(made)
    assert [remedy.name for remedy in tried] == ["summed"] or "summed (4)" in skipped
    for remedy in tried:
        assert remedy.batch is not None
        assert (remedy.batch.trials, remedy.batch.samples) == (FEWEST, 4)
        assert remedy.lost is None


def test_the_control_is_not_changed() -> None:
    trial = Trial(subject(), 8, 0)
    assert control_case(trial, "cpl").exposure.batch.samples == 1
