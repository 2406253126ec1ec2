"""Ctrl-C in an audit keeps the attacks that had ended, and never passes a gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope import Audit, Target, audit_captures
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import attack_runs, suite
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.verdict import Grade
from leakscope.core.progress import ProgressEvent
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render
from leakscope.store.captures import Capture, write_capture


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 2, "sme": 2})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 2))


def sample() -> tuple[Tensor, Tensor]:
    return torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2


def stop_at(*phases: str) -> Callable[[ProgressEvent], None]:
    """Return a listener that interrupts when one of the phases begins."""

    def listen(event: ProgressEvent) -> None:
        if event.message and (event.phase in phases or event.message in phases):
            raise KeyboardInterrupt

    return listen


def interrupted(*phases: str, remedies: bool = False) -> Audit:
    return leakscope.audit(
        network(), "cross_entropy", *sample(), clients=2, minutes=0.5, remedies=remedies, progress=stop_at(*phases)
    )


def test_finished_attacks_are_kept_and_the_grade_is_inconclusive() -> None:
    audit = interrupted("cpl", "ig")
    assert audit.interrupted
    assert [run.name for run in audit.runs] == ["analytic"]
    assert audit.grade is Grade.INCONCLUSIVE
    assert audit.unfinished
    assert audit.failures({"asr": 1.0})
    assert audit_record(audit)["interrupted"] is True
    assert render(page_of_audit(audit, command="x"))


def test_an_interrupt_before_the_first_attack_leaves_no_attack() -> None:
    audit = interrupted("analytic", "cpl", "ig")
    assert audit.interrupted
    assert audit.runs == ()
    assert audit.grade is Grade.INCONCLUSIVE
    assert audit.failures({"asr": 1.0})


def test_a_leak_beyond_the_baselines_stands_but_no_gate_is_passed() -> None:
    audit = interrupted("remedies", remedies=True)
    assert audit.interrupted
    assert audit.nulls
    assert audit.grade is Grade.F
    assert audit.advice is None
    assert audit.failures({"asr": 1.0})


def test_an_audit_that_was_not_interrupted_says_so() -> None:
    audit = interrupted()
    assert not audit.interrupted
    assert audit.grade is Grade.F
    assert audit.failures({"asr": 1.0}) == []


@pytest.mark.parametrize("scored", [True, False])
def test_captures_keep_their_finished_attacks(tmp_path: Path, scored: bool) -> None:
    model, (inputs, labels) = network(), sample()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for client in range(2):
        output = model(inputs[client : client + 1])
        slopes = torch.autograd.grad(
            nn.functional.cross_entropy(output, labels[client : client + 1]), list(model.parameters())
        )
        sent = dict(zip(before, slopes, strict=True))
        capture = Capture(
            round=1, client=str(client), before=before, sent=sent, shares="gradient", partition=client, examples=1
        )
        write_capture(tmp_path, capture)
    truth = (lambda place: (inputs[place : place + 1], labels[place : place + 1])) if scored else None
    target = Target(model=model, input_shape=(1, 4, 4), truth=truth)
    audit = audit_captures(tmp_path, target, minutes=0.5, progress=stop_at("cpl", "ig"))
    assert audit.interrupted
    assert [run.name for run in (*audit.runs, *audit.unscored)] == ["analytic"]
    assert audit.grade is (Grade.INCONCLUSIVE if scored else Grade.UNSCORED)
    assert audit.failures({"asr": 1.0})
