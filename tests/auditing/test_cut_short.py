"""An attack that the time ended early is named as not tested long enough: in the terminal, in the JSON and on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import Target, attack_runs, audit_captures, audit_target, suite
from leakscope.auditing.attempts import MEANING, CutShort, find_cut, find_cut_of
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.result import doubt_lines
from leakscope.auditing.verdict import Grade
from leakscope.core.types import Outcome, make_batch
from leakscope.play import judge
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render
from leakscope.store.captures import Capture, write_capture

LONG = 100_000  # iterations that fit into no test


def run_with(outcomes: list[Outcome], hits: list[list[bool]], done: int = 5) -> Any:
    """Return a scored run of T clients with these ends after `done` iterations; it recovered these examples exactly, no others."""
    hit = torch.tensor(hits)
    truth = make_batch(torch.full((*hit.shape, 6), 0.9), torch.zeros(hit.shape, dtype=torch.int64), classes=2)
    run = judge(truth, guessed(truth.inputs * hit[..., None], truth.labels), name="x")
    ends = torch.tensor([int(end) for end in outcomes])
    return replace(
        run, reconstruction=replace(run.reconstruction, outcome=ends, iterations=torch.full_like(ends, done))
    )


def test_clients_count_whose_attack_used_up_its_iterations_with_something_left_to_find() -> None:
    ends = [Outcome.EXHAUSTED, Outcome.EXHAUSTED, Outcome.CONVERGED, Outcome.STALLED, Outcome.DIVERGED]
    run = run_with(ends, [[True, False], [True, True], [False, False], [True, True], [True, True]])
    assert find_cut_of(run, 300) == CutShort("x", 5, 300, working=1, clients=5)
    assert find_cut("x", run.reconstruction, 300) == CutShort("x", 5, 300, working=4, clients=5)  # without the truth


@pytest.mark.parametrize(("iterations", "most"), [(300, 300), (301, 300), (0, None)])
def test_an_attack_with_all_its_iterations_was_not_cut_short(iterations: int, most: int | None) -> None:
    assert find_cut_of(run_with([Outcome.EXHAUSTED], [[False]], iterations), most) is None


@pytest.mark.parametrize(
    ("end", "done", "short"),
    [
        (Outcome.CONVERGED, 5, False),
        (Outcome.PROVED, 5, False),
        (Outcome.STALLED, 5, True),
        (Outcome.STALLED, 74, True),
        (Outcome.STALLED, 75, False),
        (Outcome.DIVERGED, 5, True),
        (Outcome.DIVERGED, 75, False),
    ],
)
def test_only_success_ends_an_attack_before_the_share_that_is_enough(end: Outcome, done: int, short: bool) -> None:
    cut = find_cut_of(run_with([end], [[False]], done), 300)
    assert cut == (CutShort("x", done, 300, 1, 1) if short else None)
    assert cut is None or not cut.enough


def test_a_padded_place_is_nothing_left_to_find() -> None:
    run = run_with([Outcome.EXHAUSTED], [[True, False]])
    assert find_cut_of(run, 300) is not None
    padded = replace(run, scores=replace(run.scores, scored=torch.tensor([[True, False]])))
    assert find_cut_of(padded, 300) is None


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CPL end as its authors do, and IG never."""
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": LONG, "sme": 1})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.usefixtures("brief")
def test_the_verdict_names_them_everywhere() -> None:
    inputs = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    target = Target(model=conv(), inputs=inputs, labels=torch.arange(12) % 3, examples=2)
    made = audit_target(target, minutes=0.003, clients=2, remedies=False)
    (cut,) = (each for each in made.short if each.name == "ig")  # a slow machine cuts cpl too
    assert cut.most == LONG
    made = replace(made, short=(cut,))
    assert 0 <= cut.iterations < LONG
    told, text = cut.words, str(made)
    assert text.index(f"({MEANING})") < text.index(f"    ig: {told}") < text.index("  not tested:")
    assert f"cpl: {told[0]}" not in text
    (listed,) = json.loads(json.dumps(audit_record(made)))["not_tested_long_enough"]
    assert (listed["name"], listed["iterations"], listed["most"], listed["words"]) == ("ig", cut.iterations, LONG, told)
    page = page_of_audit(made, command="x")
    (finding,) = [each for each in page.findings if each.lines == (f"ig: {told}",)]
    assert f"{finding.title}: ig." in page.limits
    assert f"<li>ig: {told}</li>" in render(page)
    for grade, doubtful in ((Grade.A, True), (Grade.D, True), (Grade.F, False)):
        graded = replace(made, grade=grade)
        doubts = doubt_lines(graded)
        assert len(doubts) == doubtful
        for text in (str(graded), page_of_audit(graded, command="x").explanation):
            assert all(line in text for line in doubts)
    nothing = page_of_audit(whole := replace(made, short=()), command="x")
    assert finding.title.lower() not in f"{whole}{nothing.limits}{nothing.findings}".lower()


@pytest.mark.usefixtures("brief")
def test_guesses_without_the_truth_are_named_too(tmp_path: Path) -> None:
    before = {name: value.detach() for name, value in conv().state_dict().items()}
    sent = {name: value - 0.01 for name, value in before.items()}
    write_capture(tmp_path, Capture(round=1, client="7", before=before, sent=sent, examples=1, config={"lr": 0.1}))
    torch.func.grad(torch.sum)(torch.ones(1))  # the first use loads code for seconds, which the budget would count
    made = audit_captures(tmp_path, Target(model=conv(), input_shape=(1, 4, 4)), minutes=0.02)
    assert made.grade == "unscored"
    (cut,) = (each for each in made.short if each.name == "ig")
    assert (cut.working, cut.clients) == (1, 1)
    assert cut.words in str(made)
    assert cut.words in render(page_of_audit(made, command="x"))
