"""An audit with too little time or memory ends, counts what comes before an attack, and gives no good word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks import Peeling, cpa
from leakscope.attacks.engine import plan
from leakscope.attacks.label_rules.choice import BatchLabels
from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import Target, attack_runs, audit_target, suite
from leakscope.auditing.attack_runs import (
    affordable_clients,
    expose_clients,
    null_runs,
    plan_exposure,
    read_labels,
    suite_of,
)
from leakscope.auditing.attempts import Attempt, CutShort, run_attempts
from leakscope.auditing.limits import Budget, Pace
from leakscope.auditing.result import doubt_lines
from leakscope.auditing.suite import Entry, Untested
from leakscope.auditing.target import Subject, make_subject
from leakscope.auditing.target_audit import scored_audit
from leakscope.auditing.verdict import Grade
from leakscope.core.progress import SILENT
from leakscope.play import Exposure, judge

GATE = {"asr": 1.0}  # nothing exceeds it


@pytest.fixture(autouse=True)
def short_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=4))


def sample(number: int = 24) -> dict[str, Tensor]:
    inputs = torch.rand(number, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return {"inputs": inputs, "labels": torch.arange(number) % 3}


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))


class Branching(nn.Module):
    """Two dense layers, with a branch that vmap cannot take; `features` come between them."""

    def __init__(self, features: Callable[[Tensor], Tensor] = torch.tanh, *, branch: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.features, self.branch = nn.Linear(16, 4), nn.Linear(4, 3), features, branch

    def forward(self, x: Tensor) -> Tensor:
        x = x if not self.branch or x.sum().item() > -1e9 else -x
        return self.last(self.features(self.first(x.flatten(1))))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock on which every client played and every label read takes 10 s."""
    now, expose, read_batch = [0.0], attack_runs.expose, attack_runs.read_batch

    def played(model: Any, client: Any, weights: Any, batch: Any, seeds: Any) -> Exposure:
        now[0] += 10.0 * batch.trials
        return expose(model, client, weights, batch, seeds)

    def read(model: Any, observation: Any, *rest: Any) -> BatchLabels:
        now[0] += 10.0 * observation.trials
        return read_batch(model, observation, *rest)

    monkeypatch.setattr(attack_runs, "expose", played)
    monkeypatch.setattr(attack_runs, "read_batch", read)
    return now


@pytest.fixture
def subject() -> Subject:
    return make_subject(Target(model=conv(), examples=2, **sample()))


@pytest.mark.parametrize(("seconds", "clients"), [(60.0, 2), (140.0, 3), (1000.0, 8)])
def test_as_many_clients_are_played_as_the_time_allows(
    subject: Subject, clock: list[float], seconds: float, clients: int
) -> None:
    exposure, took = affordable_clients(subject, 8, 0, Budget(seconds, 0.0, lambda: clock[0]))
    assert (exposure.trials, took) == (clients, 10.0 * clients)
    assert torch.equal(exposure.batch.inputs, expose_clients(subject, 8, 0).batch.inputs[:clients])


@pytest.mark.parametrize(("seconds", "clients"), [(0.0, 1), (35.0, 3), (1000.0, 4)])
def test_labels_are_read_of_as_many_clients_as_the_time_allows(
    subject: Subject, clock: list[float], seconds: float, clients: int
) -> None:
    world = expose_clients(subject, 4, 0)
    began = clock[0]
    reading = read_labels(world, Budget(seconds, began, lambda: clock[0]))
    assert reading.n == 2 * clients  # type: ignore[union-attr]
    assert clock[0] - began == 10.0 * clients
    assert reading == read_labels(world.select(torch.arange(clients)))


@pytest.mark.parametrize("budget", [30.0, 100.0, 400.0])
def test_what_comes_before_the_first_evaluation_counts(
    subject: Subject, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes 20 s before its first evaluation, which takes 1 s."""
    world, now = expose_clients(subject, 2, 0), [0.0]

    def go(most: int, pace: Pace) -> None:
        now[0], done = now[0] + 20.0, 0
        while not pace(done) and done < most:
            done, now[0] = done + 1, now[0] + 1.0

    def probe(exposure: Exposure, entry: Entry, iterations: int, pace: Pace) -> None:
        pace.until += now[0] - pace.clock()
        pace.clock = lambda: now[0]
        go(iterations, pace)

    def run(entry: Entry, iterations: int, pace: Pace) -> Any:
        go(iterations, pace)
        result = judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name=entry.name)
        return result, CutShort(entry.name, pace.reports[-1][1], entry.most or 0, 2, 2)

    monkeypatch.setattr("leakscope.auditing.attempts.Pace", lambda *_, **given: Pace(lambda: now[0], **given))
    monkeypatch.setattr("leakscope.auditing.attempts.reconstruct", probe)
    entries = [entry for entry in plan_exposure(world)[0] if entry.most is not None]
    attempts: list[Attempt[Any]] = [Attempt(entry, 2, pace=1.0, overhead=20.0) for entry in entries]
    run_attempts(world, attempts, Budget(budget, 0.0, lambda: now[0]), SILENT, run)
    assert now[0] <= 1.1 * budget + 1.0
    assert all(each.cut is not None for each in attempts)


def test_steps_that_are_no_evaluations_come_before_the_first() -> None:
    """As where an attack reads features exactly, and then searches images."""
    now = iter([1.0, 5.0, 9.0, 11.0, 13.0])
    pace = Pace(lambda: next(now))
    for evaluations in (0, 0, 0, 1, 2):
        pace(evaluations)
    assert (pace.overhead(0.5), pace.seconds) == (8.5, 2.0)
    assert Pace().overhead(3.0) == 0.0


@pytest.mark.slow
def test_clients_that_were_not_played_pass_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(model=nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), **sample())
    whole = audit_target(target, minutes=0.05, clients=4, remedies=False)
    monkeypatch.setattr(attack_runs, "LONG", 1e-9)
    monkeypatch.setattr(attack_runs, "PLAY_SHARE", 1e-9)
    part = audit_target(target, minutes=0.05, clients=4, remedies=False)
    assert [made.exposure.trials for made in (whole, part) if made.exposure is not None] == [4, 2]
    assert len(part.unfinished) == 1 + len(whole.unfinished)
    assert part.failures(GATE)


def test_baselines_that_cannot_be_made_are_named(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    world = expose_clients(subject, 2, 0)
    copies = world.batch.inputs[0, :1].repeat(8, 1, 1, 1), torch.zeros(8, dtype=torch.int64)
    runs, left_out = null_runs(world, copies, Pace(most=1))
    assert [run.name for run in runs] == ["class_mean", "prior_only"]
    assert [item.what for item in left_out] == ["baseline nearest_public"]
    monkeypatch.setattr(plan, "available", lambda _: 1000)
    runs, left_out = null_runs(world)
    assert (runs, [item.what for item in left_out]) == ([], ["baseline prior_only"])


def test_too_little_memory_for_the_attacks_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "available", lambda _: 1000)
    made = audit_target(Target(model=conv(), **sample()), minutes=0.5, clients=2)
    assert made.grade is Grade.INCONCLUSIVE
    assert {"cpl", "ig", "baseline prior_only"} <= {item.what for item in made.untested}
    assert made.labels is not None
    assert made.failures(GATE)


def test_a_first_layer_without_gradients_is_untested_not_safe() -> None:
    detached = Branching(lambda x: x.relu().detach(), branch=False)
    made = audit_target(Target(model=detached, **sample()), minutes=0.5, clients=3, remedies=False)
    assert made.grade is Grade.UNTESTED
    assert "analytic" in {item.what for item in made.untested}
    assert made.failures(GATE)


def test_the_division_alone_gives_no_good_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "cpa", partial(cpa, iterations=10))
    made = audit_target(Target(model=Branching(), examples=8, **sample()), minutes=5, clients=2, remedies=False)
    assert [run.name for run in made.runs] == ["analytic", "peeling", "cpa"]
    assert made.recovered == 0
    assert made.grade is Grade.INCONCLUSIVE
    assert made.failures(GATE)
    assert made.minutes_needed is None
    leaking = audit_target(Target(model=Branching(), **sample()), minutes=0.5, clients=3, remedies=False)
    assert leaking.grade is Grade.F


class _Cliff(torch.autograd.Function):
    """The identity, whose second derivative is NaN."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope * (1 + (x - x.detach()).abs().sqrt())


def test_matching_that_fails_on_every_client_leaves_no_good_grade() -> None:
    model = Branching(lambda x: torch.tanh(_Cliff.apply(x)), branch=False)
    made = audit_target(Target(model=model, examples=8, **sample()), minutes=0.3, clients=3, remedies=False)
    assert made.recovered == 0
    assert made.grade is Grade.INCONCLUSIVE
    assert made.failures(GATE)


def test_no_good_grade_without_any_baseline(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    world, done = expose_clients(subject, 2, 0), audit_target(Target(model=conv(), **sample()), minutes=0.02, clients=2)
    ran = attack_runs.Suite(done.nulls[:1], (), (), (), None)
    made = [
        scored_audit("", world, ran, nulls, Untested("labels", ""), (), Budget(60.0, 0.0), minutes=1.0, seed=0)
        for nulls in ((), done.nulls[:1])
    ]
    assert [audit.grade for audit in made] == [Grade.INCONCLUSIVE, Grade.A]
    assert made[0].failures(GATE)


def test_attacks_without_a_result_count_among_those_cut_short() -> None:
    made = audit_target(Target(model=conv(), **sample()), minutes=0.02, clients=2, remedies=False)
    cuts = tuple(CutShort(name, 0, 300, 2, 2) for name in ("cpl", "ig"))
    (line,) = doubt_lines(replace(made, grade=Grade.C, runs=made.runs[:1], short=cuts))
    assert line.startswith("2 of 2 ")


@pytest.mark.parametrize(("each", "cut"), [(0.1, False), (10.0, True)])
def test_an_exact_attack_that_the_time_ends_is_cut_short(subject: Subject, each: float, cut: bool) -> None:
    world, now = expose_clients(subject, 2, 0), [0.0]
    entry = Entry("peeling", lambda _: Peeling(), None)

    def run(entry: Entry, iterations: int, pace: Pace) -> Any:
        for number in range(20):
            if pace(number):
                break
            now[0] += each
        return judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name=entry.name), None

    attempts: list[Attempt[Any]] = [Attempt(entry, 2)]
    run_attempts(world, attempts, Budget(60.0, 0.0, lambda: now[0]), SILENT, run)
    assert (attempts[0].cut is not None) is cut
    assert now[0] <= 66.0
    assert [cut.enough for cut in suite_of(attempts).short] == [False] * cut
