"""The threat box says which attackers know the defences, and which facts of each."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.recipes import prior_only
from leakscope.auditing import Target, attack_runs, audit_target, suite
from leakscope.auditing.attack_runs import expose_clients
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.descriptions import NOT_USED, client_facts, known_facts
from leakscope.auditing.target import make_subject
from leakscope.clients import Client
from leakscope.core.tree import Tree
from leakscope.core.types import LocalTraining
from leakscope.defences import Clip, GaussianNoise, LaplaceNoise, LowRank, Quantise, Sign, Sparsify
from leakscope.defences.on_data import Transform
from leakscope.defences.on_model import Polarisation
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render


def target(**changed: Any) -> Target:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    inputs = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return Target(model=model, inputs=inputs, labels=torch.arange(12) % 3, **changed)


def facts(*defences: Any, client: Client | None = None) -> dict[str, str]:
    return dict(known_facts(expose_clients(make_subject(target(defences=defences, client=client)), 2, 0)))


@pytest.mark.parametrize(
    ("defence", "said"),
    [
        (Clip(0.5), r"bound \(0\.5\)$"),
        (Clip(0.5, each=True), r"bound \(0\.5 .*each tensor\)$"),
        (GaussianNoise(0.01), r"standard deviation .*\(0\.01\)"),
        (GaussianNoise(0.01, each=True), r"standard deviation .*each tensor"),
        (Quantise(bits=4), r"bits .*\(4\)$"),
        (Sign(), r"bits .*\(1\)$"),
        (LowRank(rank=1), f"^{NOT_USED}$"),
    ],
)
def test_each_defence_tells_its_own_facts(defence: Any, said: str) -> None:
    ((name, fact),) = facts(defence).items()
    assert name == str(defence)
    assert re.search(said, fact)


def test_of_a_mask_the_coordinates_are_told() -> None:
    (said,) = facts(Sparsify(drop=0.9)).values()
    share = float(said.removeprefix("which coordinates were sent (").removesuffix("%)"))
    assert share == pytest.approx(10, abs=2)


def test_two_noises_are_told_as_one_and_each_defence_has_a_line() -> None:
    laplace = LaplaceNoise(0.04)
    told = facts(Clip(1.0), GaussianNoise(0.03), laplace)
    bound, *noises = told.values()
    assert bound == "the bound (1)"
    assert len(noises) == 2
    assert all(f"({math.hypot(0.03, laplace.deviation):.4g})" in noise for noise in noises)


def test_of_data_and_network_the_settings_are_told_and_no_draws() -> None:
    told = facts(client=Client(on_data=Transform("3-1-7"), on_model=Polarisation(alpha2=0.25, bits=8)))
    data, head = told.values()
    assert "magnitudes" in data
    assert re.findall(r"(\w+) ([\d.]+)", head) == [("bits", "8"), ("alpha1", "1"), ("alpha2", "0.25"), ("margin", "1")]


def test_a_client_without_defences_tells_none() -> None:
    assert facts() == {}


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1, "sme": 1})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))


@pytest.mark.usefixtures("brief")
def test_the_box_names_who_was_told_what_and_who_was_not() -> None:
    defended = target(defences=(Clip(0.5),), client=LocalTraining(rate=0.1))
    made = audit_target(defended, minutes=0.5, clients=2, remedies=False)
    page = page_of_audit(made, command="x")
    line = f"of {Clip(0.5)}: the bound (0.5)"
    assert "(cpl, ig)" in page.threat.known[-2]
    assert page.threat.known[-1] == line
    assert any("client trains" in fact for fact in page.threat.known)
    (hidden,) = [fact for fact in page.threat.hidden if "client defends itself" in fact]
    assert "(attackers who" in hidden
    assert line in render(page)
    assert f"of {Clip(0.5)}: the bound (0.5)" in str(made)
    assert audit_record(made)["known_of_defences"] == [{"defence": str(Clip(0.5)), "facts": "the bound (0.5)"}]


@pytest.mark.usefixtures("brief")
def test_where_nobody_can_be_told_the_box_says_that_nobody_was() -> None:
    made = audit_target(target(defences=(LowRank(rank=1),)), minutes=0.5, clients=2, remedies=False)
    threat = page_of_audit(made, command="x").threat
    assert not [fact for fact in threat.known if "defences" in fact]
    (hidden,) = [fact for fact in threat.hidden if "client defends itself" in fact]
    assert "attackers" not in hidden
    assert audit_record(made)["known_of_defences"] == []


@pytest.mark.usefixtures("brief")
def test_without_defences_the_box_says_nothing_of_them() -> None:
    threat = page_of_audit(audit_target(target(), minutes=0.5, clients=1, remedies=False), command="x").threat
    assert not [fact for fact in (*threat.known, *threat.hidden) if "defen" in fact or "trains" in fact]


class Tenth:
    """A user's defence without words of its own."""

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        del key
        return {name: 0.1 * value for name, value in update.items()}


def test_a_defence_without_words_is_named_by_its_class() -> None:
    assert dict(client_facts(Client(defences=(Tenth(),)), 1))["defences on the update"] == "Tenth"
