"""A guard stops what its checks read back, and fails closed unless it is told otherwise."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope import Decision, GuardSettings, LocalTraining, Target, guard
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.tree import norm, subtract
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.defences import DEFENCES, Clip, Defence, GaussianNoise, RememberingDefence
from leakscope.defences.on_data import Transform
from leakscope.guarding import checks as guard_checks
from leakscope.guarding import scoring
from leakscope.guarding.checks import expose_update
from leakscope.guarding.guard import Guarded, GuardWarning
from leakscope.guarding.history import GuardHistory
from leakscope.guarding.settings import LEAST_EVALUATIONS, Check, Status

SHORT = {"evaluations": 60, "seconds": 600.0}
RATE = 0.1


def digits(number: int) -> tuple[Tensor, Tensor]:
    data = load("digits")
    return data.pictures("train", range(number)), torch.as_tensor(data.labels("train", range(number)))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Tanh()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    values = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(net.parameters()))
    return dict(zip((name for name, _ in net.named_parameters()), values, strict=True))


def weights_after(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    step = gradient(net, x, y)
    return {name: value.detach() - RATE * step[name] for name, value in net.named_parameters()}


def guarded(net: nn.Module, number: int, **settings: Any) -> Guarded:
    x, y = digits(number)
    target = Target(model=net, inputs=x, labels=y)
    return guard(target, gradient(net, x, y), settings=GuardSettings(**{**SHORT, **settings}), seed=1)


def named(result: Guarded, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


@pytest.mark.parametrize(
    ("net", "number", "by"), [(convolutional, 1, "cpl"), (dense, 1, "analytic"), (dense, 8, "analytic")]
)
def test_an_update_that_a_check_reads_back_is_refused(net: Any, number: int, by: str) -> None:
    result = guarded(net(), number)
    assert (result.decision, result.sent) == (Decision.REFUSE, None)
    assert result.checks[-1] == named(result, by)
    assert named(result, by).status is Status.LEAKED
    assert (named(result, by).recovered or 0) > 0


def test_peeling_reads_what_division_alone_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    result = guarded(dense(), 8, threshold=0.7)  # division alone reads 5 of these 8
    assert (named(result, "analytic").status, named(result, "peeling").status) == (Status.PASSED, Status.LEAKED)
    assert named(result, "peeling").recovered == 1.0


def test_an_update_that_nothing_reads_back_is_sent_as_it_is() -> None:
    net = convolutional()
    result = guarded(net, 64, evaluations=5)
    assert result.decision is Decision.SEND
    assert result.sent is not None
    sent = gradient(net, *digits(64))
    assert all(torch.equal(result.sent[name], value) for name, value in sent.items())
    statuses = {check.name: check.status for check in result.checks}
    expected = dict.fromkeys(("static", "labels", "cpl", "ig"), Status.PASSED)
    assert statuses == {**expected, "analytic": Status.NOT_APPLICABLE}


@pytest.mark.parametrize("client", [None, LocalTraining(rate=RATE, epochs=2, batch_size=8)])
def test_a_matching_attack_searches_few_examples_of_a_large_batch(client: LocalTraining | None) -> None:
    net = convolutional()
    x, y = digits(40)
    sent = gradient(net, x, y) if client is None else weights_after(net, x, y)
    exposure, _ = expose_update(Target(model=net, inputs=x, labels=y, client=client), sent)
    searched = guard_checks._searched(exposure, 4)
    assert (searched.knowledge.samples, searched.batch.samples) == (4, 40)
    if client is not None:
        assert searched.knowledge.local is not None
        assert searched.knowledge.local.steps(4) == client.steps(40)
        assert float(searched.knowledge.local.length([4])) == float(client.length([40]))
    target = Target(model=net, inputs=x, labels=y, client=client)
    result = guard(target, sent, settings=GuardSettings(guesses=4, evaluations=5, seconds=600))
    assert result.decision is Decision.SEND
    assert named(result, "ig").evaluations == 5


def test_few_guesses_still_find_the_example_that_outweighs_the_others() -> None:
    net = convolutional()
    x, y = digits(20)
    alone, all_of_them = gradient(net, x[:1], y[:1]), gradient(net, x, y)
    sent = {name: alone[name] + 1e-6 * all_of_them[name] for name in alone}
    settings = GuardSettings(guesses=1, evaluations=60, seconds=600, attacks=("cpl",))
    result = guard(Target(model=net, inputs=x, labels=y), sent, settings=settings)
    assert result.decision is Decision.REFUSE
    assert named(result, "cpl").recovered == pytest.approx(1 / 20)


def test_labels_act_only_under_a_threshold_of_their_own() -> None:
    result = guarded(convolutional(), 1, label_threshold=0.5)
    assert result.decision is Decision.REFUSE
    assert result.checks[-1].name == "labels"
    assert result.checks[-1].recovered == 1.0


def test_a_warning_lets_the_update_go() -> None:
    with pytest.warns(GuardWarning):
        result = guarded(dense(), 1, action=Decision.WARN)
    assert result.decision is Decision.WARN
    assert result.sent is not None


def raising(*_: Any, **__: Any) -> None:
    raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("fail_open", [False, True])
def test_a_check_that_raises_fails_closed_unless_open(monkeypatch: pytest.MonkeyPatch, fail_open: bool) -> None:
    monkeypatch.setattr(guard_checks, "reconstruct", raising)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = guarded(convolutional(), 1, fail_open=fail_open)
    assert named(result, "cpl").status is Status.FAILED
    assert result.decision is (Decision.SEND if fail_open else Decision.REFUSE)
    assert (result.sent is None) is not fail_open
    assert any(issubclass(each.category, GuardWarning) for each in seen) is fail_open


@pytest.mark.parametrize("fail_open", [False, True])
def test_a_guard_without_time_fails_closed_unless_open(fail_open: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuardWarning)
        result = guarded(convolutional(), 1, seconds=1e-6, fail_open=fail_open)
    assert result.checks[0].status is Status.TIMED_OUT
    assert result.decision is (Decision.SEND if fail_open else Decision.REFUSE)


def test_a_matching_attack_that_the_time_cuts_too_short_has_not_checked_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = guard_checks.Pace
    monkeypatch.setattr(
        guard_checks, "Pace", lambda until, most: pace(until=until, most=min(most, 3))
    )  # as if time ended
    result = guarded(convolutional(), 8, least_evaluations=10)
    assert (named(result, "cpl").status, named(result, "cpl").evaluations) == (Status.TIMED_OUT, 3)
    assert result.decision is Decision.REFUSE


def test_a_matching_attack_needs_enough_evaluations_or_all_that_were_set() -> None:
    assert GuardSettings().enough == LEAST_EVALUATIONS
    assert GuardSettings(evaluations=60).enough == 60
    assert GuardSettings(least_evaluations=7).enough == 7


def test_a_time_that_ends_after_five_evaluations_stops_an_update_that_leaks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = guard_checks.Pace
    monkeypatch.setattr(guard_checks, "Pace", lambda until, most: pace(until=until, most=min(most, 5)))
    result = guarded(convolutional(), 1, attacks=("cpl",))
    assert (result.decision, named(result, "cpl").status) == (Decision.REFUSE, Status.TIMED_OUT)
    assert "too short: 5 of 60 evaluations; its authors use up to" in result.reason


def test_an_update_is_not_sent_without_saying_how_long_it_was_attacked() -> None:
    result = guarded(convolutional(), 1, evaluations=5, attacks=("cpl",))  # fewer on purpose
    assert result.decision is Decision.SEND
    assert "cpl: 5 evaluations; its authors use up to" in result.reason


def transformed(x: Tensor, client: Client, seed: int) -> Tensor:
    batch = make_batch(x[None], torch.zeros(1, len(x), dtype=torch.int64), classes=10)
    return client.transformed(batch, (seed,)).inputs[0]


@pytest.mark.parametrize("number", [1, 3])
def test_an_example_that_is_read_back_transformed_has_leaked(number: int) -> None:
    client, net, (x, y) = Client(on_data=Transform(crop=2)), dense(), digits(number)
    settings = GuardSettings(evaluations=2, seconds=600, attacks=("cpl",))
    target = Target(model=net, inputs=x, labels=y, client=client)
    sent = gradient(net, transformed(x, client, 12_345), y)  # draws that the guard does not know
    assert guard(replace(target, client=None), sent, settings=settings).decision is Decision.SEND
    result = guard(target, sent, settings=settings)
    assert (result.decision, result.checks[-1].status) == (Decision.REFUSE, Status.LEAKED)


def test_a_guess_is_compared_with_what_the_network_may_have_seen() -> None:
    client, net, (x, y) = Client(on_data=Transform(crop=2)), dense(), digits(3)
    exposure, _ = expose_update(Target(model=net, inputs=x, labels=y, client=client), gradient(net, x, y))
    seen = transformed(x, client, 0)[None]
    assert scoring._share_as_seen(exposure, seen) == 1.0
    assert scoring._share_as_seen(exposure, torch.rand_like(seen)) == 0.0


def test_an_open_guard_goes_on_after_a_failure_and_still_finds_the_leak() -> None:
    net = dense()
    x, y = digits(1)
    sent = {**gradient(net, x, y)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard_checks, "labels_problem", raising)
        result = guard(Target(model=net, inputs=x, labels=y), sent, settings=GuardSettings(fail_open=True, seconds=600))
    assert named(result, "labels").status is Status.FAILED
    assert result.decision is Decision.REFUSE
    assert result.checks[-1].name == "analytic"


def test_an_exact_attack_that_cannot_read_the_network_is_not_applicable() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10)).train()
    result = guarded(net, 6, threshold=0.9, evaluations=5)  # batch statistics: no sample can be certified by itself
    assert named(result, "peeling").status is Status.NOT_APPLICABLE
    assert result.decision is Decision.SEND


@pytest.mark.parametrize("spoil", ["nan", "shape", "missing"])
def test_an_update_that_cannot_be_checked_is_refused(spoil: str) -> None:
    net = dense()
    x, y = digits(1)
    sent = gradient(net, x, y)
    if spoil == "missing":
        del sent["1.bias"]
    else:
        sent["1.bias"] = sent["1.bias"] * torch.nan if spoil == "nan" else sent["1.bias"][:3]
    result = guard(Target(model=net, inputs=x, labels=y), sent)
    assert result.decision is Decision.REFUSE
    assert result.checks[0].status is Status.FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defence", "decision"), [(GaussianNoise(1.0), Decision.DEFEND), (GaussianNoise(1e-9), Decision.REFUSE)]
)
def test_a_defence_is_added_and_the_result_is_checked_again(defence: Defence, decision: Decision) -> None:
    net = dense()
    result = guarded(net, 1, action=Decision.DEFEND, defences=[defence])
    assert result.decision is decision
    first, again = [[each for each in result.checks if each.defended is late] for late in (False, True)]
    assert first[-1].status is Status.LEAKED
    assert all(each.status is not Status.LEAKED for each in again) is (decision is Decision.DEFEND)
    if result.sent is not None:
        assert float(norm(subtract(result.sent, gradient(net, *digits(1))))) > 1
        x, y = digits(1)
        told = Target(model=net, inputs=x, labels=y, defences=[defence])
        once_more = guard(told, result.sent, settings=GuardSettings(evaluations=60, seconds=600))
        assert once_more.decision is Decision.SEND  # no update leaves that the check could read back


@pytest.mark.parametrize(
    "client", [LocalTraining(rate=RATE), Client(local=LocalTraining(rate=RATE), defences=(Clip(1e3),))]
)
def test_weights_after_training_are_defended_as_a_change(client: Any) -> None:
    net = dense()
    x, y = digits(1)
    sent = weights_after(net, x, y) | {"statistics": torch.ones(3), "steps": torch.tensor(4)}
    net.register_buffer("statistics", torch.zeros(3))
    settings = GuardSettings(action=Decision.DEFEND, defences=[GaussianNoise(1.0)], evaluations=5, seconds=600)
    result = guard(Target(model=net, inputs=x, labels=y, client=client), sent, settings=settings, seed=1)
    assert result.decision is Decision.DEFEND
    assert [each.status for each in result.checks if not each.defended][-1] is Status.LEAKED
    assert result.sent is not None
    noise = {name: result.sent[name] - sent[name] for name in sent if name != "steps"}
    assert all(0.5 < float(value.std()) < 2 for value in noise.values())
    assert int(result.sent["steps"]) == 4


def test_the_batch_scores_the_attack_and_is_never_seen_by_it() -> None:
    net = dense()
    x, y = digits(2)
    exposure, _ = expose_update(Target(model=net, inputs=x[:1], labels=y[:1]), gradient(net, x[:1], y[:1]))
    assert exposure.knowledge.labels is None
    assert exposure.informed is None
    other = Target(model=net, inputs=x[1:], labels=y[1:])  # the update is that of another example
    assert guard(other, gradient(net, x[:1], y[:1]), settings=GuardSettings(**SHORT)).decision is Decision.SEND  # type: ignore[arg-type]


def test_the_log_has_one_line_of_json_a_decision_and_nothing_private(tmp_path: Path) -> None:
    log = tmp_path / "guard.jsonl"
    net = dense()
    x, y = digits(1)
    target, sent = Target(model=net, inputs=x, labels=y), gradient(net, x, y)
    for number in range(2):
        guard(target, sent, settings=GuardSettings(log=log), about={"round": number})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert {line["decision"] for line in lines} == {"refuse"}
    assert set(lines[0]) == {"time", "round", "decision", "reason", "seconds", "checks"}
    assert [check["status"] for check in lines[0]["checks"]] == ["passed", "passed", "leaked"]
    assert set(lines[0]["checks"][0]) == {
        "name",
        "status",
        "recovered",
        "seconds",
        "evaluations",
        "note",
        "by_structure",
        "defended",
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 1.5},
        {"label_threshold": -0.1},
        {"seconds": 0},
        {"share": 0},
        {"share": 1.5},
        {"evaluations": 0},
        {"guesses": 0},
        {"least_evaluations": 2000},
        {"attacks": ("cpx",)},
        {"attacks": "cpl"},
        {"attacks": ()},
        {"action": Decision.SEND},
        {"action": Decision.DEFEND},
        {"defences": [Clip(1.0)]},
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        GuardSettings(**settings)


def test_settings_refuse_defences_that_remember() -> None:
    remembering = [make() for make in DEFENCES.values() if isinstance(make(), RememberingDefence)]
    for defence in remembering:
        with pytest.raises(InputError):
            GuardSettings(action=Decision.DEFEND, defences=[defence])


SHARE = {"share": 0.1, "seconds": 600.0, "evaluations": 5, "guesses": 2, "attacks": ("cpl",)}


def statuses(result: Guarded) -> dict[str, Status]:
    return {check.name: check.status for check in result.checks}


def rounds(net: nn.Module, trainings: list[float], **settings: Any) -> list[Guarded]:
    """Return the results of a client of four digits that trains for so many seconds in each round."""
    x, y = digits(4)
    history, results = GuardHistory(), []
    for seconds in trainings:
        target = Target(model=net, inputs=x, labels=y)
        chosen = GuardSettings(**{**SHARE, **settings})
        results.append(guard(target, gradient(net, x, y), settings=chosen, history=history.trained(seconds)))
        assert results[-1].history is not None
        history = results[-1].history
    return results


def test_matching_attacks_rest_until_they_cost_no_more_than_their_share() -> None:
    first, second, third, last = rounds(convolutional(), [1e-3, 1e-3, 1e-3, 3600.0])
    assert {each.decision for each in (first, second, third, last)} == {Decision.SEND}
    ran = {
        "static": Status.PASSED, "labels": Status.PASSED, "analytic": Status.NOT_APPLICABLE, "cpl": Status.PASSED,
    }  # fmt: skip
    assert statuses(first) == statuses(last) == ran
    rested = {"static": Status.PASSED, "labels": Status.NOT_CHECKED, "cpl": Status.NOT_CHECKED}
    assert statuses(second) == statuses(third) == rested
    assert [each.history.rounds for each in (first, second, third, last) if each.history] == [0, 1, 2, 0]
    assert second.seconds < first.seconds / 4


def test_exact_checks_and_labels_that_may_act_never_rest() -> None:
    _, dense_again = rounds(dense(), [1e-3] * 2, threshold=1.0)
    exact = {"analytic": Status.PASSED, "peeling": Status.PASSED}
    assert exact.items() < statuses(dense_again).items()
    assert statuses(dense_again)["cpl"] is Status.NOT_CHECKED
    first, again = rounds(convolutional(), [1e-3] * 2, label_threshold=0.999, evaluations=6)
    share = named(first, "labels").recovered
    assert share is not None
    assert named(again, "labels").recovered == share


@pytest.mark.parametrize("exact", [Status.PASSED, Status.NOT_APPLICABLE])
def test_every_exact_attack_that_a_network_admits_keeps_running(exact: Status) -> None:
    none = Check("analytic", Status.NOT_APPLICABLE, by_structure=True)
    ran = (
        Check("static", Status.PASSED),
        Check("labels", Status.PASSED),
        none,
        Check("cpl", Status.PASSED, evaluations=5),
    )
    for checks, remains in ((ran, False), ((*ran, Check("cpa", exact)), True)):
        assert GuardHistory().guarded("task", Decision.SEND, checks, 1.0, rested=False).exact is remains


def test_what_leaked_or_was_not_tested_long_enough_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for result in rounds(dense(), [1e-3] * 2):
        assert (result.decision, result.checks[-1].status) == (Decision.REFUSE, Status.LEAKED)
    pace = guard_checks.Pace
    monkeypatch.setattr(guard_checks, "Pace", lambda until, most: pace(until=until, most=min(most, 2)))
    for result in rounds(convolutional(), [1e-3] * 2):
        assert (result.decision, named(result, "cpl").status) == (Decision.REFUSE, Status.TIMED_OUT)


@pytest.mark.parametrize("change", ["model", "batch", "training", "settings"])
def test_another_task_is_attacked_again(change: str) -> None:
    net, (x, y), settings = convolutional(), digits(4), GuardSettings(**SHARE)  # type: ignore[arg-type]
    first = Target(model=net, inputs=x, labels=y)
    history = guard(first, gradient(net, x, y), settings=settings, history=GuardHistory().trained(1e-3)).history
    if change == "model":
        net = nn.Sequential(*convolutional(), nn.Identity())
    (x, y), client = digits(5 if change == "batch" else 4), LocalTraining(rate=RATE) if change == "training" else None
    sent = gradient(net, x, y) if client is None else weights_after(net, x, y)
    settings = replace(settings, guesses=1) if change == "settings" else settings
    result = guard(Target(model=net, inputs=x, labels=y, client=client), sent, settings=settings, history=history)
    assert named(result, "cpl").status is Status.PASSED


def test_a_resting_guard_still_refuses_an_update_that_cannot_be_checked() -> None:
    net, (x, y), settings = convolutional(), digits(4), GuardSettings(**SHARE)  # type: ignore[arg-type]
    target, sent = Target(model=net, inputs=x, labels=y), gradient(net, x, y)
    history = guard(target, sent, settings=settings, history=GuardHistory()).history
    spoilt = {**sent, "0.bias": sent["0.bias"] * torch.nan}
    result = guard(target, spoilt, settings=settings, history=history)
    assert (result.decision, statuses(result)) == (Decision.REFUSE, {"static": Status.FAILED})
    assert result.history is not None
    assert named(guard(target, sent, settings=settings, history=result.history), "cpl").status is Status.PASSED


@pytest.mark.parametrize(("share", "history"), [(0.1, None), (None, GuardHistory())])
def test_a_share_and_a_history_belong_together(share: float | None, history: GuardHistory | None) -> None:
    net, (x, y) = convolutional(), digits(1)
    with pytest.raises(InputError):
        guard(Target(model=net, inputs=x, labels=y), {}, settings=GuardSettings(share=share), history=history)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("1.running_mean", torch.zeros(5)),
        ("2.running_mean", torch.zeros(4)),
        ("1.running_var", torch.full((4,), torch.nan)),
    ],
)
def test_buffers_of_another_network_are_refused(name: str, value: Tensor) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)).train()
    x, y = digits(8)
    target = Target(model=net, inputs=x, labels=y, client=LocalTraining(rate=RATE))
    result = guard(target, {**net.state_dict(), name: value}, settings=GuardSettings(threshold=1.0, evaluations=1))
    assert (result.decision, statuses(result)) == (Decision.REFUSE, {"static": Status.FAILED})
    assert name in result.reason
    assert "\n" not in result.reason


def test_statistics_of_batch_norm_in_the_update_are_named_as_not_checked() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)).train()
    x, y = digits(8)
    target = Target(model=net, inputs=x, labels=y, client=LocalTraining(rate=RATE))
    settings = GuardSettings(evaluations=5, seconds=600, attacks=("cpl",))
    sent = weights_after(net, x, y)
    assert "buffers" not in statuses(guard(target, sent, settings=settings))
    result = guard(target, {**net.state_dict(), **sent}, settings=settings)
    assert (result.decision, named(result, "buffers").status) == (Decision.SEND, Status.NOT_CHECKED)
