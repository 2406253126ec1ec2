"""What an audit makes of layers that send nothing, and of losses whose labels cannot be read."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from leakscope.attacks.recipes import prior_only
from leakscope.auditing import Audit, attack_runs, audit, suite
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.descriptions import sent_part
from leakscope.peeking import peek
from leakscope.report.audit_page import page_of_audit


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 2, "sme": 2})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))


def audited(module: nn.Module, loss: str) -> Audit:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 1, 4, 4, generator=generator)
    return audit(module, loss, x, torch.arange(12) % 3, minutes=0.5, clients=2, remedies=False)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))


def test_a_frozen_first_layer_sends_nothing_to_read() -> None:
    module = net()
    module[1].requires_grad_(False)
    found = audited(module, "cross_entropy")
    assert "analytic" in {item.what for item in found.untested}
    assert found.exposure is not None
    assert set(found.exposure.observation.rounds[0].sent) == {"3.weight", "3.bias"}


@pytest.mark.parametrize("frozen", [True, False])
def test_an_audit_and_a_peek_say_which_part_of_the_model_is_sent(frozen: bool) -> None:
    module = net()
    module[1].requires_grad_(not frozen)
    found = audited(module, "cross_entropy")
    assert found.exposure is not None
    sent = sent_part(found.exposure)
    assert sent == ((2, 21, 4, 123) if frozen else (4, 123, 4, 123))
    assert audit_record(found)["sent"] == sent._asdict()
    assert sent.words in str(found)
    assert dict(page_of_audit(found, command="").threat.setting)["sent of the model"] == (sent.words,)
    seen = peek(module, torch.rand(1, 1, 4, 4), torch.tensor([1]), iterations=1, noise=False)
    assert (sent.words in str(seen)) == frozen
    assert dict(seen.page.threat.setting)["sent of the model"] == (sent.words,)


def test_a_model_that_is_all_frozen_is_untested() -> None:
    found = audited(net().requires_grad_(False), "cross_entropy")
    assert found.grade == "untested"
    assert "frozen" in found.untested[0].why


@pytest.mark.parametrize("loss", ["mse", "softmax_cross_entropy"])
def test_pictures_are_read_whatever_the_loss(loss: str) -> None:
    with pytest.warns(UserWarning, match="drawn at random"):
        found = audited(net(), loss)
    assert found.worst is not None
    assert found.worst.name == "analytic"
    assert found.grade == "F"
    assert "label recovery" in {item.what for item in found.untested}
