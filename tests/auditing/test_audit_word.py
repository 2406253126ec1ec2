"""A good grade and a passed gate need attacks that ran long enough on updates that say something; a leak that was found stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.batch_statistics import BatchStatistics
from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import cpl
from leakscope.auditing import Target, advice, attack_runs, audit_target, suite, target_audit
from leakscope.auditing.advice import advise
from leakscope.auditing.attack_runs import (
    Suite,
    expose_clients,
    fastest_threads,
    plan_exposure,
    read_labels,
    run_entries,
    suite_of,
)
from leakscope.auditing.attempts import ENOUGH_SHARE, Attempt, CutShort, evaluations_of, reconstruct, run_attempts
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.limits import Budget, Pace
from leakscope.auditing.result import Audit
from leakscope.auditing.suite import Entry
from leakscope.auditing.target import make_subject
from leakscope.auditing.target_audit import left_out_statistics, scored_audit
from leakscope.auditing.verdict import Grade
from leakscope.clients import Client
from leakscope.core.progress import SILENT
from leakscope.core.tree import Tree
from leakscope.core.types import Outcome
from leakscope.defences import GaussianNoise
from leakscope.play import AttackResult, Exposure, judge
from leakscope.report.audit_page import page_of_audit

GATE = {"asr": 1.0}  # nothing exceeds it


def sample(number: int = 12) -> dict[str, Tensor]:
    inputs = torch.rand(number, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return {"inputs": inputs, "labels": torch.arange(number) % 3}


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))


@pytest.fixture(scope="module")
def world() -> Exposure:
    return expose_clients(make_subject(Target(model=conv(), **sample())), 4, 0)


# -- which word


def judged(world: Exposure, hits: int, *cuts: CutShort, broken: tuple[str, ...] = ()) -> Audit:
    """Return the audit of one attack that recovered the first clients, with these attacks cut short."""
    guess = 1 - world.batch.inputs
    guess[:hits] = world.batch.inputs[:hits]
    null = judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name="null")
    run = judge(world.batch, guessed(guess, world.batch.labels), name="ig")
    done = Suite((run,), cuts, (), broken, needed=60.0)
    budget = Budget(60.0, 0.0, lambda: 1.0)
    return scored_audit("x", world, done, [null], read_labels(world), [], budget, minutes=1.0, seed=0)


def test_a_good_grade_needs_attacks_that_ran_long_enough(world: Exposure) -> None:
    least = int(ENOUGH_SHARE * 4800)
    for iterations, wanted in ((least, Grade.B), (least - 1, Grade.INCONCLUSIVE), (0, Grade.INCONCLUSIVE)):
        made = judged(world, 0, CutShort("ig", iterations, 4800, 4, 4))
        assert made.grade is wanted
        assert bool(made.failures(GATE)) == bool(made.unfinished) == (wanted is Grade.INCONCLUSIVE)
        assert (made.minutes_needed is None) == (wanted is Grade.B)
    assert judged(world, 0).grade is Grade.B
    assert judged(world, 0, broken=("ig",)).grade is Grade.INCONCLUSIVE


@pytest.mark.parametrize(
    ("clients", "evaluations", "wanted"),
    [(4, 1200, Grade.INCONCLUSIVE), (4, 1, Grade.INCONCLUSIVE), (1, 1200, Grade.B)],
)
def test_an_attack_that_diverged_on_every_client_supports_no_good_grade(
    world: Exposure, clients: int, evaluations: int, wanted: Grade
) -> None:
    """Its numbers are no longer finite, however many iterations it had."""
    attempts = []
    for name, diverged in (("cpl", 0), ("ig", clients)):
        ends = torch.full((4,), int(Outcome.CONVERGED))
        ends[:diverged] = int(Outcome.DIVERGED)
        run = judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name=name)
        steps = torch.full((4,), evaluations)
        ended = replace(run.reconstruction, outcome=ends, evaluations=steps, iterations=steps)
        attempts.append(Attempt[AttackResult](Entry(name, lambda _: cpl(), 4800), 4))
        attempts[-1].take(replace(run, reconstruction=ended), None)
    null = judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name="null")
    budget = Budget(60.0, 0.0, lambda: 1.0)
    made = scored_audit("x", world, suite_of(attempts), [null], read_labels(world), [], budget, minutes=1.0, seed=0)
    assert made.grade is wanted
    assert bool(made.failures(GATE)) == (wanted is Grade.INCONCLUSIVE)


@pytest.mark.parametrize(("hits", "wanted"), [(4, Grade.F), (1, Grade.D)])
def test_a_leak_that_was_found_stands_and_passes_no_gate(world: Exposure, hits: int, wanted: Grade) -> None:
    made = judged(world, hits, CutShort("cpl", 0, 300, 4, 4))
    assert made.grade is wanted
    assert len(made.failures(GATE)) == 1
    assert made.failures({}) == []


@pytest.mark.parametrize("end", ["diverged", "converged before the first iteration"])
@pytest.mark.parametrize(("lost", "broken"), [(1, False), (2, True), (4, True)])
def test_an_attack_that_got_nowhere_on_half_of_the_clients_has_failed(
    world: Exposure, end: str, lost: int, broken: bool
) -> None:
    run = judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name="cpl")
    ends = torch.full_like(run.reconstruction.outcome, int(Outcome.CONVERGED))
    steps = torch.full_like(run.reconstruction.evaluations, 40)
    iterations = steps.clone()
    if end == "diverged":
        ends[:lost] = int(Outcome.DIVERGED)
    else:
        iterations[:lost] = 0
    ended = replace(run.reconstruction, outcome=ends, evaluations=steps, iterations=iterations)
    attempt = Attempt[Any](Entry("cpl", lambda _: None, 300), world.trials)  # type: ignore[arg-type, return-value]
    attempt.take(replace(run, reconstruction=ended), None)
    assert attempt.broken is broken


def test_cpl_on_updates_below_its_threshold_has_failed() -> None:
    """With faint weights all gradients are near each other: cpl ends at once and has shown nothing."""
    module = conv()
    with torch.no_grad():
        for name in ("0.weight", "3.weight"):
            module.get_parameter(name).mul_(1e-4)
    exposure = expose_clients(make_subject(Target(model=module, **sample())), 4, 0)
    entry = Entry("cpl", lambda most: cpl(iterations=most), 300)
    ended = reconstruct(exposure, entry, 300)
    attempt = Attempt[AttackResult](entry, exposure.trials)
    attempt.take(judge(exposure.batch, ended, name="cpl"), None)
    assert bool((ended.outcome == Outcome.CONVERGED).all())
    assert attempt.broken


def test_label_recovery_that_breaks_supports_no_good_grade(world: Exposure, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(attack_runs, "LABEL_RULES", dict.fromkeys(attack_runs.LABEL_RULES, out_of_memory))
    made = judged(world, 0)
    assert made.grade is Grade.INCONCLUSIVE
    assert made.failures(GATE)


def test_the_headline_tells_iterations_minutes_and_labels(world: Exposure) -> None:
    made = judged(world, 0, CutShort("ig", 5, 4800, 4, 4))
    record = audit_record(made)
    assert (record["grade"], record["minutes_needed"]) == ("inconclusive", made.minutes_needed)
    for text in (str(made).splitlines()[0], page_of_audit(made, command="x").headline):
        assert "5 of 4800" in text
        assert "labels: 100 %" in text
    assert "labels: 100 %" in page_of_audit(judged(world, 4), command="x").headline


def test_minutes_are_promised_for_attacks_that_did_not_fail(world: Exposure) -> None:
    cut = CutShort("ig", 5, 4800, 4, 4)
    for broken, promise in (((), "minutes would be enough;"), (("cpl",), "minutes would be enough for the others;")):
        assert promise in str(judged(world, 0, cut, broken=broken)).splitlines()[0]


# -- updates that say nothing


class Changed(nn.Module):
    """Two dense layers whose output a function changes."""

    def __init__(self, change: Callable[[Tensor], Tensor], features: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.last, self.change, self.features = nn.Linear(16, 4), nn.Linear(4, 3), change, features

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.last(self.features(self.first(x.flatten(1)).sigmoid())))


@pytest.mark.parametrize("defences", [(), (GaussianNoise(0.1),)])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(
    "model",
    [
        Changed(Tensor.detach),
        Changed(lambda x: x * torch.nan),
        Changed(lambda x: x / 0.0),
        Changed(Tensor.float, torch.zeros_like),
    ],
    ids=["zero", "nan", "infinite", "constant"],
)
def test_an_update_that_says_nothing_is_untested(model: nn.Module, clients: int, defences: Any) -> None:
    alike = {"inputs": sample()["inputs"], "labels": torch.zeros(12, dtype=torch.int64)}
    made = audit_target(Target(model=model, defences=defences, **alike), minutes=0.5, clients=clients)
    assert made.grade is Grade.UNTESTED
    assert made.runs == ()
    assert made.failures(GATE)
    assert [item.what for item in made.untested] == ["the model"]


@dataclass(frozen=True)
class SendNothing:
    """A defence of one's own that leaves nothing of the update."""

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        del key
        return {name: torch.zeros_like(value) for name, value in update.items()}


def test_a_defence_that_sends_zeros_is_untested() -> None:
    made = audit_target(
        Target(model=Changed(lambda x: x), defences=(SendNothing(),), **sample()), minutes=0.5, clients=3
    )
    assert made.grade is Grade.UNTESTED
    assert made.failures(GATE)


def test_features_that_autograd_cannot_see_through_are_named() -> None:
    subject = make_subject(Target(model=Changed(lambda x: x, Tensor.detach), **sample()))
    assert subject.unmatched is not None


def test_reasons_name_what_is_frozen_and_what_batch_norm_sends() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    thawed = make_subject(Target(model=layers.eval(), **sample()))
    assert "analytic" in [entry.name for entry in plan_exposure(expose_clients(thawed, 2, 0))[0]]
    layers[1].requires_grad_(False)
    frozen = make_subject(Target(model=layers, **sample()))
    (why,) = [item.why for item in plan_exposure(expose_clients(frozen, 2, 0))[1] if item.what == "analytic"]
    assert "frozen" in why


@pytest.mark.parametrize(("training", "sends", "unread"), [(False, False, 0), (True, False, 1), (True, True, 0)])
def test_statistics_of_batch_norm_are_untested_where_clients_do_not_send_them(
    training: bool, sends: bool, unread: int
) -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).train(training)
    subject = make_subject(Target(model=layers, client=Client(sends_buffers=sends), examples=2, **sample()))
    world = expose_clients(subject, 2, 0)
    assert len(left_out_statistics(world)) == unread
    (ig,) = [entry.make(1) for entry in plan_exposure(world)[0] if entry.name == "ig"]
    assert any(isinstance(prior, BatchStatistics) for prior in ig.priors) == sends


def test_no_time_is_not_given_as_a_lack_of_attackers(world: Exposure) -> None:
    subject = make_subject(Target(model=conv(), **sample()))
    late = advise(subject, world, [], Budget(0.0, 0.0, lambda: 1.0), SILENT, clients=2, seed=0)
    unmatched = replace(subject, unmatched="no second derivative")
    unable = advise(unmatched, world, [], Budget(0.0, 0.0, lambda: 1.0), SILENT, clients=2, seed=0)
    assert late.ranking != unable.ranking


# -- the time


def test_the_time_ends_an_attack_between_two_evaluations(world: Exposure) -> None:
    cpl = next(entry for entry in plan_exposure(world)[0] if entry.name == "cpl")
    pace = Pace(most=3)
    ended = reconstruct(world, cpl, 300, pace)
    assert pace.ended
    assert ended.evaluations.max() == 3
    assert ended.iterations.max() == 0  # an iteration of L-BFGS takes up to 20
    assert set(ended.outcome.tolist()) <= {int(Outcome.EXHAUSTED), int(Outcome.STALLED)}
    whole, again = (reconstruct(world, cpl, 2, pace) for pace in (None, Pace()))
    assert torch.equal(whole.inputs, again.inputs)


def test_threads_are_chosen_by_single_evaluations(world: Exposure, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def timed(exposure: Exposure, entry: Entry, iterations: int, pace: Pace) -> None:
        asked.append(pace.most)
        pace.reports += [(0.0, 0), (9.0, 1)]

    monkeypatch.setattr("leakscope.auditing.attack_runs.reconstruct", timed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert fastest_threads(world, plan_exposure(world)[0]) == 2
    assert asked == [1]


def timed_attempts(world: Exposure, seconds: float, budget: float) -> tuple[list[Attempt[Any]], float]:
    """Return the attempts of a suite whose evaluations take `seconds` on a clock of their own, and the time they took."""
    clock = [0.0]
    entries = [entry for entry in plan_exposure(world)[0] if entry.name in ("cpl", "ig")]

    def run(entry: Entry, iterations: int, pace: Pace) -> Any:
        done = 0
        while not pace(done) and done < evaluations_of(entry) * iterations / (entry.most or 1):
            done, clock[0] = done + 1, clock[0] + seconds
        whole = int(done * (entry.most or 1) / evaluations_of(entry))
        result = judge(world.batch, guessed(1 - world.batch.inputs, world.batch.labels), name=entry.name)
        return result, CutShort(entry.name, whole, entry.most or 0, 4, 4) if whole < (entry.most or 0) else None

    attempts: list[Attempt[Any]] = [Attempt(entry, 4) for entry in entries]
    run_attempts(world, attempts, Budget(budget, 0.0, lambda: clock[0]), SILENT, run)
    return attempts, clock[0]


@pytest.mark.parametrize(("seconds", "budget"), [(0.01, 60.0), (0.01, 300.0), (2.0, 60.0), (90.0, 60.0)])
def test_the_time_is_kept_and_used(
    world: Exposure, seconds: float, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitting(exposure: Exposure, entry: Entry, given: float) -> int:
        return max(1, min(entry.most or 0, int(given / seconds)))

    monkeypatch.setattr("leakscope.auditing.attempts.iterations_within", fitting)
    attempts, took = timed_attempts(world, seconds, budget)
    assert took <= max(1.1 * budget, budget + seconds)
    needed = seconds * sum(evaluations_of(each.entry) for each in attempts)
    assert took >= min(0.6 * budget, 0.9 * needed)
    assert all(each.cut is None for each in attempts) == (needed <= budget)


def test_the_minutes_that_would_do_are_known_even_if_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 3, "ig": 40})
    subject = expose_clients(make_subject(Target(model=conv(), **sample())), 2, 0)
    entries = plan_exposure(subject)[0]
    none = run_entries(subject, [Attempt(each, 2, pace=0.1) for each in entries], Budget(0.0, time.monotonic()), SILENT)
    assert [(cut.name, cut.iterations) for cut in none.short] == [("feature_inversion", 0), ("cpl", 0), ("ig", 0)]
    assert none.needed is not None
    assert none.unfinished


def test_no_labels_of_a_slow_network_are_read_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit whose clients took the whole time is inconclusive and does not begin another evaluation."""
    exposure = expose_clients(make_subject(Target(model=conv(), **sample())), 2, 0)
    monkeypatch.setattr(target_audit, "affordable_clients", lambda *_: (exposure, 10.0))
    monkeypatch.setattr(target_audit, "read_labels", lambda *_: pytest.fail("it began"))
    made = audit_target(Target(model=conv(), **sample()), minutes=1e-9)
    assert made.grade is Grade.INCONCLUSIVE
    assert "label recovery" in {item.what for item in made.untested}


def test_no_remedy_is_tried_once_the_time_is_over(world: Exposure, monkeypatch: pytest.MonkeyPatch) -> None:
    over = Budget(1.0, 0.0, lambda: 2.0)
    monkeypatch.setattr(advice, "find_course", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr(advice, "control_case", lambda *_: pytest.fail("it began"))
    subject, runs = make_subject(Target(model=conv(), **sample())), judged(world, 4).runs
    tried = advice.advise(subject, world, runs, over, SILENT, clients=2, seed=0)
    assert not tried.remedies
    assert {why for _, why in tried.skipped} > {advice.LATE}
