"""Of transformed pictures the audit also says what came back as the network saw them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from leakscope.attacks.recipes import prior_only
from leakscope.auditing import Audit, Target, attack_runs, audit_target, suite
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.verdict import AsSeen, most_as_seen
from leakscope.clients import Client
from leakscope.defences.on_data import Transform
from leakscope.metrics.interval import Estimate
from leakscope.report.audit_page import page_of_audit


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1, "sme": 1})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))


def audited(**changed: Any) -> Audit:
    """Return the audit of a network whose first layer gives its input away by a division."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))
    inputs = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    target = Target(model=model, inputs=inputs, labels=torch.arange(12) % 3, **changed)
    return audit_target(target, minutes=0.5, clients=4, remedies=False)


@pytest.mark.slow
def test_a_copy_of_the_transformed_picture_is_told_though_it_is_far_from_the_private_one() -> None:
    made = audited(client=Client(on_data=Transform("3-1-7")))
    analytic = next(run for run in made.runs if run.name == "analytic")
    assert not bool(analytic.recovered.any())
    best = most_as_seen(made.as_seen)
    assert best is not None
    assert (best.name, best.recovered.value, best.recovered.n) == ("analytic", 1.0, 4)
    assert "analytic recovered 4" in best.words
    assert made.grade == "F"
    graded = replace(made, grade="B")
    for text in (str(graded), page_of_audit(graded, command="x").explanation):
        assert best.words.lower() in text.lower()
    listed = {each["name"]: each for each in json.loads(json.dumps(audit_record(made)))["recovered_as_seen"]}
    assert (listed["analytic"]["value"], listed["analytic"]["n"]) == (1.0, 4)
    assert set(listed) == {run.name for run in made.runs}
    assert [line for line in made.failures({"asr": 0.05}) if line.startswith("asr of transformed")]
    assert not any("transformed" in line for line in made.failures({"psnr": 99.0}) + made.failures({"asr": 1.0}))


def test_nothing_is_said_where_pictures_are_left_alone() -> None:
    made = audited()
    assert made.as_seen == ()
    assert audit_record(made)["recovered_as_seen"] == []
    assert "transformed" not in str(replace(made, grade="B"))


def test_the_attack_that_recovered_most_is_named_and_none_where_none_did() -> None:
    shares = {"cpl": 0.25, "ig": 0.75, "analytic": 0.0}
    found = [AsSeen(name, Estimate(share, 0.0, 1.0, 4, 4)) for name, share in shares.items()]
    best = most_as_seen(found)
    assert best is not None
    assert (best.name, best.recovered.value) == ("ig", 0.75)
    assert "3 of 4" in best.words
    assert most_as_seen(found[2:]) is None
    assert most_as_seen(()) is None
