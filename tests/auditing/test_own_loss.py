"""A dense first layer is division whatever the loss: labels of any shape, any callable, before any check of the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope import peek
from leakscope.auditing.attack_runs import expose_clients, plan_exposure, read_labels
from leakscope.auditing.capture_audit import audit_captures
from leakscope.auditing.static.facts import Severity, Topic
from leakscope.auditing.static.inspection import inspect_target
from leakscope.auditing.suite import Untested
from leakscope.auditing.target import Target, make_subject
from leakscope.auditing.target_audit import audit_target
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining
from leakscope.learning import UserLoss
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render
from leakscope.store.captures import Capture, write_capture

M = 24


def table() -> Tensor:
    return torch.rand(M, 6, generator=torch.Generator().manual_seed(0))


def dense(outputs: int, *more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, outputs), *more)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def summed(output: Tensor, target: Tensor) -> Tensor:
    return (output.squeeze(1) - target).abs().sum()


BROUGHT: dict[str, tuple[nn.Module, Any, Any]] = {
    "one logit": (dense(1), nn.BCEWithLogitsLoss(), torch.arange(M) % 2),
    "one logit, a column": (dense(1), nn.BCEWithLogitsLoss(), (torch.arange(M) % 2).float()[:, None]),
    "regression": (dense(1), nn.MSELoss(), drawn(M).double()),
    "regression by name": (dense(1), "mse", drawn(M).tolist()),
    "regression of three": (dense(3), nn.MSELoss(), drawn(M, 3)),
    "squeezed": (dense(1, nn.Flatten(0)), nn.HuberLoss(), drawn(M)),
    "multi-label": (dense(5), nn.BCEWithLogitsLoss(), drawn(M, 5) > 0),
    "soft rows": (dense(3), "cross_entropy", drawn(M, 3).softmax(1)),
    "per pixel": (dense(12, nn.Unflatten(1, (3, 2, 2))), nn.CrossEntropyLoss(), torch.arange(4 * M).reshape(M, 2, 2) % 3),
    "a sum": (dense(3), nn.CrossEntropyLoss(reduction="sum"), torch.arange(M) % 3),
    "values": (dense(5), nn.BCEWithLogitsLoss(reduction="none"), (drawn(M, 5) > 0).float()),
    "of one's own": (dense(1), summed, drawn(M)),
    "weighted": (dense(3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), torch.arange(M) % 3),
}  # fmt: skip


def brought(name: str, **changed: Any) -> Target:
    model, loss, labels = BROUGHT[name]
    return Target(**({"model": model, "inputs": table(), "labels": labels, "loss": loss} | changed))


@pytest.mark.parametrize("name", BROUGHT)
def test_a_dense_first_layer_is_divided_whatever_the_loss(name: str) -> None:
    made = audit_target(brought(name), minutes=0.01, clients=4, remedies=False)
    assert made.grade == "F"
    assert made.worst is not None
    assert made.worst.name == "analytic"
    assert float(made.worst.scores.mse.max()) < 1e-8
    assert made.worst.summary.label is None  # no classes, no guesses of them
    smooth = name != "of one's own"  # the update of a sum of absolute errors does not change smoothly with the targets
    assert {item.what for item in made.untested} - {"target recovery"} == (set() if smooth else {"cpl", "ig"})
    assert "class 0" not in str(made)
    render(page_of_audit(made, command="x"))


@pytest.mark.parametrize("name", BROUGHT)
def test_the_update_is_that_of_the_users_own_training(name: str) -> None:
    model, loss, _ = BROUGHT[name]
    subject = make_subject(brought(name, examples=M))
    assert isinstance(subject.client.loss, UserLoss)
    assert subject.targets is not None
    function = F.mse_loss if loss == "mse" else F.cross_entropy if loss == "cross_entropy" else loss
    wanted = torch.autograd.grad(function(model(table()), subject.targets).mean(), list(model.parameters()))
    exposure = expose_clients(subject, 1, 0)
    seen = exposure.observation.rounds[0].sent
    for got, want in zip(seen.values(), wanted, strict=True):
        torch.testing.assert_close(got[0], want, rtol=1e-4, atol=1e-6)


WEIGHTS = torch.tensor([1.0, 2.0, 5.0])
KINDS: dict[str, nn.Module] = {
    "weight": nn.CrossEntropyLoss(weight=WEIGHTS),
    "almost equal weights": nn.CrossEntropyLoss(weight=1 + 1e-4 * WEIGHTS),
    "a weight of 0": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 1.0])),
    "smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "faint smoothing": nn.CrossEntropyLoss(label_smoothing=1e-4),
    "smoothing and weight": nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
    "ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "weighted sum": nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_cross_entropy_is_taken_for_its_plain_mean(kind: str, tmp_path: Path) -> None:
    """Clients train with the given loss; rules and proofs that read plain cross entropy stay away, and are named."""
    model, labels, loss = dense(3), torch.arange(M) % 3, KINDS[kind]
    exposure = expose_clients(
        make_subject(Target(model=model, inputs=table(), labels=labels, loss=loss, examples=4)), 1, 0
    )
    (inputs,), (targets,) = exposure.batch.inputs, exposure.batch.compared
    wanted = torch.autograd.grad(loss(model(inputs), targets), list(model.parameters()))
    plain = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
    for got, want in zip(exposure.observation.rounds[0].sent.values(), wanted, strict=True):
        torch.testing.assert_close(got[0], want, rtol=1e-5, atol=1e-7)
    assert not all(torch.equal(want, other) for want, other in zip(wanted, plain, strict=True))
    entries, untested = plan_exposure(exposure)
    assert not {"peeling", "cpa"} & {entry.name for entry in entries}
    reading = read_labels(exposure)
    assert isinstance(reading, Untested)
    assert "CrossEntropyLoss" in reading.why
    named = {item.what: item.why for item in untested}
    assert "ig" in {entry.name for entry in entries} or "targets cannot be searched" in named["ig"]

    seen = peek(model, inputs, targets, loss=loss).shown.exposure
    for got, want in zip(seen.observation.rounds[0].sent.values(), wanted, strict=True):
        torch.testing.assert_close(got[0], want, rtol=1e-5, atol=1e-7)
    sent = dict(zip(dict(model.named_parameters()), wanted, strict=True))
    before = dict(model.state_dict())
    told: dict[str, Any] = {"partition": 0, "examples": 4, "shares": "gradient"}
    write_capture(tmp_path, Capture(round=1, client="0", before=before, sent=sent, **told))
    given = Target(model=model, input_shape=(6,), loss=loss, truth=lambda _: (inputs, targets))
    made = audit_captures(tmp_path, given, minutes=0.02)
    assert isinstance(made.exposure.client.loss, UserLoss)  # type: ignore[union-attr]
    assert not {run.name for run in made.runs} & {"peeling", "cpa"}


@pytest.mark.parametrize("ignored", [-100, 255])
def test_an_ignored_label_is_named(ignored: int) -> None:
    labels = torch.arange(M) % 3
    labels[0] = ignored
    with pytest.raises(InputError, match="ignore_index"):
        make_subject(
            Target(model=dense(3), inputs=table(), labels=labels, loss=nn.CrossEntropyLoss(ignore_index=ignored))
        )


def test_a_batch_counts_what_division_recovers() -> None:
    made = audit_target(brought("multi-label", examples=3), minutes=0.01, clients=8, remedies=False)
    assert made.recovered >= 12
    assert made.grade == "F"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1)), "does not begin"),
        (
            nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 1)),
            "0.weight and 0.bias are frozen",
        ),
        (nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 1)), "no bias"),
    ],
)
def test_what_cannot_be_divided_is_named_with_its_own_reason(model: nn.Module, why: str) -> None:
    entries, untested = plan_exposure(expose_clients(make_subject(brought("one logit", model=model)), 2, 0))
    assert why in {item.what: item.why for item in untested}["analytic"]
    assert {entry.name for entry in entries} >= {"cpl", "ig"}


def test_local_batches_of_unequal_size_need_a_mean_over_examples() -> None:
    local = LocalTraining(batch_size=2)
    loss = make_subject(brought("regression", examples=3, client=local)).client.loss
    assert isinstance(loss, UserLoss)
    assert loss.each
    with pytest.raises(InputError, match="divide"):
        make_subject(brought("of one's own", examples=3, client=local))
    make_subject(brought("of one's own", examples=4, client=local))


@pytest.mark.parametrize("name", ["one logit", "regression", "multi-label", "per pixel"])
def test_peek_divides_whatever_the_loss(name: str) -> None:
    model, loss, labels = BROUGHT[name]
    made = peek(model, table()[:1], torch.as_tensor(labels)[:1], loss=loss, noise=False)
    torch.testing.assert_close(made.inputs, table()[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["multi-label", "one logit, a column", "regression of three"])
def test_static_lines_claim_no_label_and_no_peeling_under_a_loss_that_no_rule_reads(name: str) -> None:
    target = brought(name, examples=4)
    exposure = expose_clients(make_subject(target), 2, 0)
    lines, claimed = inspect_target(target, exposure=exposure), inspect_target(target)
    assert claimed[Topic.LABELS].severity is Severity.PARTIAL
    assert lines[Topic.LABELS].severity is Severity.UNKNOWN
    assert set(claimed[Topic.UNITS].decided_by) == {"peeling", "spear"}
    peels = "peeling" in {entry.name for entry in plan_exposure(exposure)[0]}
    assert ("peeling" in lines[Topic.UNITS].decided_by) == peels
