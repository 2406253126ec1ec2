"""Attacks that the user of an audit chose: names, recipes and attacks; what is left out of the suite forbids a good grade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.attacks import Attack, analytic, cpl, ig
from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import Audit, Target, attack_runs, audit_captures, audit_target, suite
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.chosen_attacks import Chosen, choose_attacks
from leakscope.auditing.suite import INFORMED
from leakscope.auditing.verdict import Grade
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds
from leakscope.defences import Clip
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render
from leakscope.store.captures import Capture, write_capture

INPUTS = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attack of the suite end after an iteration."""
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1, "sme": 1})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))


def conv() -> nn.Module:
    """Return a network with fewer parameters than two examples have pixels: no attack gets them back."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 1, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1, 3))


def audited(attacks: Sequence[Chosen] | None, **more: object) -> Audit:
    target = Target(model=conv(), inputs=INPUTS, labels=torch.arange(12) % 3, examples=2, **more)  # type: ignore[arg-type]
    return audit_target(target, minutes=1, clients=2, remedies=False, attacks=attacks)


@dataclass(frozen=True)
class Own:
    """An attack of one's own: mid-grey images, or those given, or an error."""

    name: str = "own"
    images: Tensor | None = field(default=None, repr=False)
    error: Exception | None = None

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: object = None
    ) -> Reconstruction:
        if self.error is not None:
            raise self.error
        grey = torch.full((len(seeds), knowledge.samples, *knowledge.input_shape), 0.5)
        labels = torch.zeros(grey.shape[:2], dtype=torch.int64)
        return guessed(grey if self.images is None else self.images, labels)


def names(audit: Audit) -> list[str]:
    return [run.name for run in audit.runs]


def left_out(audit: Audit) -> list[str]:
    return [item.what for item in audit.untested if item.left_out]


def test_a_part_of_the_suite_gives_no_good_grade_and_passes_no_gate() -> None:
    whole, part = audited(None), audited(["cpl"])
    assert (names(whole), left_out(whole)) == (["feature_inversion", "cpl", "ig"], [])
    assert whole.grade in (Grade.A, Grade.B)
    assert (names(part), left_out(part)) == (["cpl"], ["feature_inversion", "ig"])
    assert part.grade is Grade.INCONCLUSIVE
    gate = {"asr": 1.0}
    assert whole.failures(gate) == []
    assert len(part.failures(gate)) == 1
    assert part.minutes_needed is None
    assert [item["what"] for item in audit_record(part)["untested"] if item["left_out"]] == ["feature_inversion", "ig"]  # type: ignore[index,attr-defined]
    assert "ig (" in page_of_audit(part, command="x").limits
    assert render(page_of_audit(part, command="x"))


def test_attacks_of_ones_own_are_run_beside_the_suite() -> None:
    made = audited(["suite", Own(), partial(cpl, iterations=1), cpl(iterations=1), ig(iterations=2)])
    assert names(made) == ["feature_inversion", "cpl", "ig", "own", "cpl (2)", "cpl (3)", "ig (2)"]
    assert left_out(made) == []
    assert made.grade in (Grade.A, Grade.B)
    iterations = {run.name: int(run.reconstruction.iterations.max()) for run in made.runs}
    assert iterations["ig (2)"] == 2


def test_an_attack_of_ones_own_may_make_the_grade_worse() -> None:
    truth = audited(["cpl"]).exposure
    assert truth is not None
    made = audited(["suite", Own(images=truth.batch.inputs)])
    assert made.grade is Grade.F
    assert made.worst is not None
    assert made.worst.name == "own"
    alone = audited([Own(images=truth.batch.inputs)])
    assert (alone.grade, left_out(alone)) == (Grade.F, ["feature_inversion", "cpl", "ig"])


@pytest.mark.parametrize(
    ("error", "grade"), [(ZeroDivisionError(), Grade.INCONCLUSIVE), (InputError("not for it"), None)]
)
def test_an_attack_of_ones_own_that_fails_is_named(error: Exception, grade: Grade | None) -> None:
    made = audited(["suite", Own(error=error)])
    assert [item.what for item in made.untested if item.what == "own"] == ["own"]
    assert made.grade is (grade or audited(None).grade)


@pytest.mark.parametrize("name", ["cpa", "feature_inversion"])
def test_exact_attacks_can_be_chosen(name: str) -> None:
    reasons = {item.what: item.why for item in audited([name]).untested}
    assert "iteration" not in reasons.get(name, "")


def test_names_of_the_catalogue_and_attacks_that_cannot_work_here() -> None:
    made = audited(["idlg", "analytic", "sme", "cpl", "ig", "feature_inversion"])
    assert "idlg" not in [item.what for item in made.untested if item.left_out]
    assert {"analytic", "sme"} <= {item.what for item in made.untested}  # no dense first layer, one gradient
    assert left_out(made) == []


@pytest.mark.parametrize("attacks", [[], "cpl", ["none_such"], [3]])
def test_what_is_no_list_of_attacks_is_refused(attacks: Sequence[Chosen]) -> None:
    with pytest.raises(InputError):
        audited(attacks)
    with pytest.raises(UnknownNameError):
        audited(["none_such"])


def test_defences_are_told_to_attacks_of_ones_own() -> None:
    exposure = audited(["cpl"], defences=(Clip(1.0),)).exposure
    assert exposure is not None
    entries, _ = choose_attacks([], [], [cpl, analytic, Own()], exposure)
    assert [(entry.name, entry.informed) for entry in entries] == [
        ("cpl", False),
        (f"cpl, {INFORMED}", True),
        (f"analytic, {INFORMED}", True),
        (f"own, {INFORMED}", True),
    ]
    assert all(entry.own for entry in entries)
    attack: Attack = entries[1].make(7)
    assert attack.stop.iterations == 7  # type: ignore[attr-defined]


def test_labels_that_cannot_be_read_are_optimised() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3, bias=False))
    exposure = audit_target(
        Target(model=network, inputs=INPUTS, labels=torch.arange(12) % 3), minutes=1, clients=2, remedies=False
    ).exposure
    assert exposure is not None
    (entry,), _ = choose_attacks([], [], [cpl], exposure)
    assert entry.make(1).labels == "joint"  # type: ignore[attr-defined]


def test_captures_and_the_short_form_take_attacks_too(tmp_path: Path) -> None:
    before = {name: value.detach() for name, value in conv().state_dict().items()}
    sent = {name: value - 0.01 for name, value in before.items()}
    write_capture(
        tmp_path, Capture(round=1, client="7", before=before, sent=sent, examples=1, config={"lr": 0.1, "epochs": 1})
    )
    made = audit_captures(tmp_path, Target(model=conv(), input_shape=(1, 4, 4)), minutes=1, attacks=[Own(), "cpl"])
    assert {run.name for run in made.unscored} == {"cpl", "own", "prior_only"}
    assert left_out(made) == ["feature_inversion", "ig"]
    short = leakscope.audit(
        conv(), "cross_entropy", INPUTS, torch.arange(12) % 3, clients=2, minutes=1, remedies=False, attacks=[Own()]
    )
    assert (names(short), short.grade) == (["own"], Grade.INCONCLUSIVE)
