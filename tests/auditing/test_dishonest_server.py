"""Audits against a malicious server: manipulations that fit are played and graded apart, the others say why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from leakscope import audit, load
from leakscope.auditing import Audit, dishonest_server
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.verdict import Grade
from leakscope.core.errors import InputError
from leakscope.models import adapt, gpt
from leakscope.report.audit_page import page_of_audit


def audited(
    *, examples: int = 4, sample: int = 60, server: str = "malicious", clients: int = 2, aggregate: int = 1
) -> Audit:
    """Return the audit of a convolutional network, of which division alone is run by the curious server."""
    data = load("digits")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    x, y = data.pictures("train", range(sample)), data.labels("train", range(sample))
    return audit(
        net, "cross_entropy", x, y, examples=examples, clients=clients, aggregate=aggregate, minutes=0.02,
        remedies=False, attacks=["analytic"], server=server, progress=False,
    )  # fmt: skip


def test_a_malicious_server_has_a_grade_of_its_own_on_all_outputs() -> None:
    result = audited()
    assert result.grade is not Grade.F
    assert result.dishonest is not None
    assert result.dishonest.grade is Grade.F
    assert result.dishonest.worst == "imprint, inserted"
    untested = {item.what: item.why for item in result.dishonest.untested}
    assert "shares none" in untested["trap_weights"]
    assert "single clients" in untested["loki"]
    assert "SEER" in untested
    assert "dishonest" in str(result)
    record = audit_record(result)["dishonest_server"]
    assert isinstance(record, dict)
    assert record["threat_model"] == "G"
    page = page_of_audit(result, command="leakscope audit")
    found = next(each for each in page.findings if each.title == "A dishonest server")
    assert "Data-Enhanced Manipulator" in found.words
    assert any("imprint, inserted" in line for line in found.lines)
    assert any("dishonest" in line for line in result.failures({"asr": 0.05}))


def test_no_gate_is_passed_by_a_manipulation_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(dishonest_server, "expose_manipulated", out_of_memory)
    result = audited()
    assert result.dishonest is not None
    assert "imprint, inserted failed" in result.dishonest.unfinished
    assert any("imprint, inserted failed" in line for line in result.failures({"asr": 1.0}))


def test_the_clients_of_a_sum_are_separated_by_loki() -> None:
    result = audited(aggregate=3, clients=1, examples=2)
    assert result.dishonest is not None
    assert {"loki", "imprint, inserted"} <= {run.name for run in result.dishonest.runs}


def test_a_server_without_public_examples_is_untested() -> None:
    result = audited(sample=8)
    assert result.dishonest is not None
    assert result.dishonest.grade is Grade.UNTESTED
    assert all("public" in item.why for item in result.dishonest.untested if item.what.startswith("imprint"))


def test_a_curious_server_manipulates_nothing_and_an_honest_one_is_refused() -> None:
    assert audited(server="curious").dishonest is None
    with pytest.raises(InputError, match="honest server reads no updates"):
        audited(server="honest")
    with pytest.raises(InputError, match="curious or malicious"):
        audited(server="evil")


@pytest.mark.filterwarnings("error:labels are drawn")
@pytest.mark.parametrize("adapters", [False, True])
def test_token_networks_meet_the_manipulation_that_fits_them(adapters: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(90, (60, 8))
    net = gpt(vocabulary=90, positions=8, width=64, depth=3, classes=3)
    net = adapt(net, layers=("value", "dense1")) if adapters else net
    result = audit(
        net, "cross_entropy", x, torch.randint(3, (60,)), examples=4, clients=2, minutes=0.05, remedies=False,
        server="malicious", progress=False,
    )  # fmt: skip
    assert result.dishonest is not None
    assert result.dishonest.recovered > 0
    played, other = ("decepticons", "adapter_imprint")[:: -1 if adapters else 1]
    assert result.dishonest.worst == played
    assert any(line.startswith(f"{played}: ") for line in result.dishonest.lines)
    assert other in {item.what for item in result.dishonest.untested}


def test_captures_are_not_manipulated(tmp_path: Path) -> None:
    from leakscope.auditing.target import Target
    from leakscope.auditing.target_file import Request
    from leakscope.cli.audit import run_audit

    request = Request(Target(model=nn.Linear(2, 2)), server="malicious")
    with pytest.raises(InputError, match="sent already"):
        run_audit(request, str(tmp_path), remedies=False, quiet=True)
