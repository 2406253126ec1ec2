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
from leakscope.auditing.changes import (
    FEWEST,
    Aggregate,
    Change,
    GroupNorm,
    KeepBuffers,
    LargerBatch,
    MoreSteps,
    changes_for,
)
from leakscope.auditing.limits import Budget, start_budget
from leakscope.auditing.remedies import Finding, find
from leakscope.auditing.remedy_trials import Trial, batches, control_case, make_candidate, run_together
from leakscope.auditing.target import Subject, Target, make_subject
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.progress import SILENT
from leakscope.core.types import LocalTraining, Outcome, Reconstruction
from leakscope.data import load
from leakscope.models.group_norm import with_group_norm
from leakscope.play import AttackResult, judge


def subject(number: int = 64, **changed: Any) -> Subject:
    data = load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    inputs, labels = data.pictures("train", range(number)), torch.as_tensor(data.labels("train", range(number)))
    return make_subject(Target(**({"model": model, "inputs": inputs, "labels": labels} | changed)))


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("change", "number"),
    [(Aggregate(4), 31), (LargerBatch(4), 31), (MoreSteps(4), 64), (KeepBuffers(), 64), (GroupNorm(), 64)],
)
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


def test_a_remedy_meets_every_exact_attack() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    several = make_subject(Target(model=model, inputs=images, labels=torch.arange(64) % 10, examples=8))
    trial = Trial(several, 2, 0)
    made = make_candidate(trial, "none", "1", LargerBatch(1), "cpl", start_budget(1.0))
    assert {"analytic", "peeling"} <= {run.name for run in made.exact}
    peeling = next(run for run in made.exact if run.name == "peeling")
    run = result_of(made.case.exposure.batch, 0)
    tested = advice._tested(made, run, advice.Control("cpl", run, 1, 1), None)
    assert tested.run.summary.content.value >= peeling.summary.content.value


def test_a_remedy_is_not_judged_without_an_exact_attack_that_the_time_cut() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    trial = Trial(
        make_subject(Target(model=model, inputs=torch.rand(16, 1, 8, 8), labels=torch.arange(16) % 10, examples=4)),
        2,
        0,
    )
    over = Budget(1.0, 0.0, lambda: 2.0)
    with pytest.raises(InputError, match="no time left"):
        make_candidate(trial, "none", "1", LargerBatch(1), "cpl", over)


@pytest.mark.slow
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


def normalised() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6)
    nn.init.uniform_(norm.weight)
    return nn.Sequential(nn.Conv2d(1, 6, 3), norm, nn.Sigmoid(), nn.Flatten(), nn.Linear(216, 10)).train()


def test_changes_of_batch_norm_are_tried_where_there_is_one() -> None:
    def kinds(world: Subject) -> list[type]:
        return [type(change) for _, _, change in changes_for(world.model, world.client)]

    plain = [Aggregate, LargerBatch, MoreSteps]
    assert kinds(subject()) == plain
    assert kinds(subject(model=normalised(), examples=2)) == [*plain, GroupNorm]
    sending = subject(model=normalised(), examples=2, client=Client(sends_buffers=True))
    assert kinds(sending) == [*plain, KeepBuffers, GroupNorm]


def test_clients_that_keep_their_buffers_send_only_the_update() -> None:
    trial = Trial(subject(model=normalised(), examples=2, client=Client(sends_buffers=True)), 5, 0)
    control = control_case(trial, "ig").exposure.observation.rounds[0]
    kept = make_candidate(trial, "kept", "", KeepBuffers(), "ig").case.exposure.observation.rounds[0]
    assert (control.buffers_after is None, kept.buffers_after is None) == (False, True)
    assert all(torch.equal(kept.sent[name], value) for name, value in control.sent.items())


def test_group_norm_takes_the_place_of_batch_norm_in_a_copy() -> None:
    net = normalised()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trial = Trial(subject(model=net, examples=2, client=Client(sends_buffers=True, norm="train")), 5, 0)
    candidate = make_candidate(trial, "GroupNorm", "", GroupNorm(), "ig")
    exposure = candidate.case.exposure
    assert isinstance(net[1], nn.BatchNorm2d)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert (exposure.trials, exposure.model.norms, exposure.observation.rounds[0].buffers_after) == (5, (), None)
    changed = nn.Sequential(net[0], nn.GroupNorm(3, 6), *net[2:])
    changed[1].load_state_dict({name: before[f"1.{name}"] for name in ("weight", "bias")})
    x, y = exposure.batch.inputs[0], exposure.batch.labels[0]
    expected = torch.autograd.grad(nn.functional.cross_entropy(changed(x), y), list(changed.parameters()))
    for (name, _), value in zip(changed.named_parameters(), expected, strict=True):
        torch.testing.assert_close(exposure.observation.rounds[0].sent[name][0], value)


def test_changed_clients_run_apart_from_those_of_another_model_or_without_buffers() -> None:
    trial = Trial(subject(model=normalised(), examples=2, client=Client(sends_buffers=True)), 4, 0)
    changes: list[Change] = [GroupNorm(), KeepBuffers()]
    cases = [
        control_case(trial, "ig"),
        *(make_candidate(trial, "change", "", change, "ig").case for change in changes),
        control_case(trial, "ig"),
    ]
    assert batches(cases) == [[0, 3], [1], [2]]
    together = run_together([cases[0], cases[3]], 2)
    assert torch.equal(together[0].reconstruction.inputs, together[1].reconstruction.inputs)


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 24), (8, 4), (7, 1), (1, 1)])
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    made = with_group_norm(nn.BatchNorm1d(channels, affine=False))
    assert isinstance(made, nn.GroupNorm)
    assert (made.num_groups, made.weight) == (groups, None)


def test_a_layer_that_is_used_twice_stays_one_layer() -> None:
    norm = nn.BatchNorm1d(4)
    made = with_group_norm(nn.Sequential(nn.Linear(4, 4), norm, nn.Sequential(norm)))
    assert isinstance(made, nn.Sequential)
    assert made[1] is made[2][0]
    assert isinstance(made[1], nn.GroupNorm)
