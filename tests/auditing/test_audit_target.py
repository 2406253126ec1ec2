"""What users bring to an audit: taken where its meaning is clear, one clear line or an untested model where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leakscope.auditing import audit_captures
from leakscope.auditing.attack_runs import expose_clients
from leakscope.auditing.suite import INFORMED, UNKNOWN, plan_suite, unknown_defences
from leakscope.auditing.target import Target, UntestedError, make_subject
from leakscope.auditing.target_audit import audit_target
from leakscope.auditing.target_file import read_request
from leakscope.clients import Aggregation, Client
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining
from leakscope.defences import Clip, GaussianNoise, LowRank
from leakscope.learning import UserLoss
from leakscope.models import Lack, find_shortfall, from_module


def sample() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(24, 5, generator=generator), torch.arange(24) % 3


def target(**changed: Any) -> Target:
    inputs, labels = sample()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    return Target(**({"model": model, "inputs": inputs, "labels": labels} | changed))


# -- the loss


def focal(output: Tensor, labels: Tensor) -> Tensor:
    each = nn.functional.cross_entropy(output, labels, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def sure() -> nn.Module:
    """Return a network that is sure of all that it sees, where most losses are 0 and so is their gradient."""
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(30 * torch.eye(3))
        model.bias.zero_()
    return model


def of_sure(loss: Any) -> Target:
    labels = torch.arange(24) % 3
    return Target(model=sure(), inputs=torch.eye(3)[labels], labels=labels, loss=loss)


@pytest.mark.parametrize(
    "loss",
    [focal, nn.CrossEntropyLoss(label_smoothing=0.01), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 1.2]))],
)
def test_another_loss_is_not_taken_for_cross_entropy(loss: Any) -> None:
    for bring in (of_sure(loss), target(loss=loss)):
        assert isinstance(make_subject(bring).client.loss, UserLoss)


def test_cross_entropy_is_known_on_a_sure_model_and_on_logarithms() -> None:
    assert make_subject(of_sure(nn.CrossEntropyLoss())).client.loss == "cross_entropy"
    logarithms = nn.Sequential(nn.Linear(5, 3), nn.LogSoftmax(1))
    assert make_subject(target(model=logarithms, loss=nn.NLLLoss())).client.loss == "cross_entropy"
    assert isinstance(make_subject(target(loss=nn.NLLLoss())).client.loss, UserLoss)  # of plain logits it is another


def test_a_loss_without_a_gradient_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be differentiated"):
        make_subject(target(loss=lambda o, y: nn.functional.cross_entropy(o.detach(), y)))


# -- labels, numbers, defences


@pytest.mark.parametrize("kind", [Tensor.tolist, Tensor.numpy])
def test_labels_may_be_a_list_or_an_array(kind: Any) -> None:
    labels = sample()[1]
    assert make_subject(target(labels=kind(labels))).labels.tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": ["a"] * 24}, "labels .*got list"),
        ({"labels": {}}, "labels .*got dict"),
        ({"examples": 1.5}, "examples .*got 1.5"),
        ({"examples": True}, "examples .*got True"),
        ({"examples": "2"}, "examples .*got '2'"),
        ({"defences": "clip"}, "defences must be"),
        ({"defences": [Clip]}, "defences must be"),
        ({"defences": None}, "defences must be"),
    ],
)
def test_what_is_off_is_one_clear_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        make_subject(target(**changed))
    assert "\n" not in str(refused.value)


def test_one_defence_by_itself_is_taken() -> None:
    assert make_subject(target(defences=Clip(1.0))).client.defences == (Clip(1.0),)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients": "2"}, "clients .*got '2'"),
        ({"clients": 0}, "clients .*1.."),
        ({"minutes": "2"}, "minutes .*a number"),
        ({"minutes": None}, "minutes .*a number"),
        ({"seed": 0.5}, "seed .*whole number"),
        ({"seed": 2**31}, r"seed .*0..2\*\*31 - 1"),
    ],
)
def test_settings_of_another_type_are_one_clear_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        audit_target(target(), **settings)


def test_a_python_file_is_told_how_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pkg/fed.py .*pkg\.fed:build"):
        read_request(Path("pkg/fed.py"))
    with pytest.raises(InputError, match="such as fed:build"):
        read_request(tmp_path / "fed.py")


# -- batch norm


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"examples": 1}, "examples .*least 2"),
        ({"examples": 4, "client": LocalTraining(batch_size=1)}, "batch size .*least 2"),
    ],
)
def test_batch_norm_over_one_example_is_one_clear_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        make_subject(target(model=normed(), **changed))
    assert "model.eval()" in str(refused.value)
    make_subject(target(model=normed().eval(), **changed))


# -- models that no attack here can handle


class Old(torch.autograd.Function):
    """As functions were written before torch.func: the context comes first and there is no setup_context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope * (1 - x.tanh() ** 2)


class Through(nn.Module):
    def __init__(self, function: Any, features: int = 5) -> None:
        super().__init__()
        self.body, self.head, self.function = nn.Linear(features, 4), nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.body(x)))


@pytest.mark.parametrize(
    "function",
    [
        Old.apply,
        lambda x: checkpoint(torch.tanh, x, use_reentrant=False),
        lambda x: torch.from_numpy(x.detach().numpy()) * x,
    ],
)
def test_what_torch_func_cannot_differentiate_is_untested(function: Any) -> None:
    found = find_shortfall(from_module(Through(function), input_shape=(5,)))
    assert found is not None
    assert found.lack is Lack.FIRST
    made = audit_target(target(model=Through(function)), minutes=0.01)
    assert made.grade == "untested"
    assert made.untested[0].why == found.sentence


def test_other_inputs_are_untested_by_their_name() -> None:
    with pytest.raises(UntestedError, match="complex numbers"):
        make_subject(target(inputs=sample()[0].to(torch.complex64)))


# -- defences that nobody knows


@pytest.mark.parametrize(
    ("client", "unknown", "told"),
    [
        (Client(defences=(LowRank(1),)), ["LowRank"], False),
        (Client(defences=(LowRank(1), GaussianNoise(0.1))), ["LowRank"], True),
        (Client(defences=(Clip(1.0),)), [], True),
    ],
)
def test_a_defence_that_tells_nothing_is_named_as_known_to_nobody(
    client: Client, unknown: list[str], told: bool
) -> None:
    subject = make_subject(target(client=client))
    world = expose_clients(subject, 2, 0)
    found = unknown_defences(world.client, world.observation)
    entries, untested = plan_suite(
        subject.model,
        world.knowledge,
        world.informed,
        steps=1,
        shares=world.observation.shares,
        unknown=found,
    )
    assert found == unknown
    assert any(INFORMED in entry.name or entry.informed for entry in entries) == told
    assert [item.what.partition(f"{INFORMED}: ")[2] for item in untested if item.why == UNKNOWN] == unknown


def test_an_audit_of_summed_clients_attacks_all_their_examples(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "attacks": ["analytic"],
        "remedies": False,
        "clients": 4,
        "minutes": 1,
        "progress": False,
    }
    summed = audit_target(target(examples=2, aggregate=3), **settings)
    assert summed.exposure is not None
    assert (summed.exposure.trials, summed.exposure.batch.samples) == (4, 6)
    assert summed.runs[0].summary.samples == 24
    with pytest.raises(InputError, match="aggregate"):
        audit_target(target(examples=2, aggregate=13), **settings)
    file = tmp_path / "audit.yaml"
    file.write_text("model: {name: mlp}\ndata: digits\nexamples: 2\naggregate: 3\n", encoding="utf-8")
    assert make_subject(read_request(file).target).behind == 6
    file.write_text("model: {name: mlp}\ndata: digits\naggregate: {clients: 3, dropouts: 1}\n", encoding="utf-8")
    assert read_request(file).target.aggregate == Aggregation(3, dropouts=1)
    fewer = audit_target(target(examples=2, aggregate=Aggregation(3, dropouts=1)), **settings)
    assert fewer.runs[0].summary.samples == 16
    with pytest.raises(InputError, match="aggregate"):
        audit_captures(tmp_path, target(aggregate=3))


def test_peeling_that_batch_statistics_forbid_is_not_tested_rather_than_an_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).train()
    made = audit_target(
        target(model=model, examples=4), attacks=["peeling"], remedies=False, clients=2, minutes=1, progress=False
    )
    assert "peeling" in {item.what for item in made.untested}
