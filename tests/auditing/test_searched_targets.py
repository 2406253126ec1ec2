"""Under a caller's own loss matching attacks search the targets, or know them: segmentation, labels, one logit, regression."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from leakscope import peek
from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.labels import JOINT
from leakscope.attacks.recipes import cpl, ig, prior_only
from leakscope.attacks.view import Clock
from leakscope.auditing.attack_runs import LabelReading, expose_clients, plan_exposure
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.chosen_attacks import choose_attacks
from leakscope.auditing.result import GIVEN, Audit, headline
from leakscope.auditing.suite import TARGETS, Untested
from leakscope.auditing.target import Target, make_subject
from leakscope.auditing.target_audit import audit_target
from leakscope.auditing.target_readings import TargetError, read_targets
from leakscope.auditing.verdict import Grade, grade, measure, worst_run
from leakscope.core.errors import InputError
from leakscope.core.tree import take
from leakscope.core.types import LocalTraining
from leakscope.learning import UserLoss
from leakscope.learning.targets import TargetKind
from leakscope.play import AttackResult, Exposure, attack, judge
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render

M = 12
ALONE = Execution(form="loop")  # traces nothing


def images() -> Tensor:
    return torch.tensor(load_digits().images[:M] / 16, dtype=torch.float32)[:, None]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def convolutions(*end: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    body = (nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.Sigmoid())
    model = nn.Sequential(*body, *end)
    for value in model.parameters():
        nn.init.uniform_(value, -0.5, 0.5)
    return model


def dense(outputs: int) -> nn.Module:
    return convolutions(nn.Flatten(), nn.Linear(128, outputs))


def segmenting() -> nn.Module:
    return convolutions(nn.ConvTranspose2d(8, 3, 2, stride=2))


def masks() -> Tensor:
    return (images()[:, 0] > 0.3).long() + (images()[:, 0] > 0.7).long()


def focal(output: Tensor, target: Tensor) -> Tensor:
    value = F.cross_entropy(output, target, reduction="none")
    return ((1 - (-value).exp()) ** 2 * value).mean()


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
BROUGHT: dict[str, tuple[nn.Module, Any, Tensor, TargetKind | None]] = {
    "masks": (segmenting(), nn.CrossEntropyLoss(), masks(), TargetKind.CLASSES),
    "masks, weighted": (segmenting(), WEIGHTED, masks(), TargetKind.CLASSES),
    "masks, focal": (segmenting(), focal, masks(), TargetKind.CLASSES),
    "soft rows": (dense(3), "cross_entropy", drawn(M, 3).softmax(1), TargetKind.CLASSES),
    "multi-label": (dense(5), nn.BCEWithLogitsLoss(), drawn(M, 5) > 0, TargetKind.LABELS),
    "soft labels": (dense(5), nn.BCEWithLogitsLoss(), drawn(M, 5).sigmoid(), TargetKind.LABELS),
    "one logit": (dense(1), nn.BCEWithLogitsLoss(), torch.arange(M) % 2, TargetKind.LABELS),
    "regression": (dense(2), nn.MSELoss(), 50 * drawn(M, 2), TargetKind.VALUES),
    "one number": (dense(1), nn.MSELoss(), 5 * drawn(M), TargetKind.VALUES),
    "huber": (dense(2), nn.HuberLoss(), drawn(M, 2), TargetKind.VALUES),
    "absolute error": (dense(2), nn.L1Loss(), drawn(M, 2), None),
    "ignored places": (segmenting(), nn.CrossEntropyLoss(ignore_index=9), masks().masked_fill(masks() == 2, 9), None),
}


def brought(name: str, **changed: Any) -> Target:
    model, loss, labels, _ = BROUGHT[name]
    return Target(**({"model": model, "inputs": images(), "labels": labels, "loss": loss} | changed))


def own_loss(name: str) -> UserLoss:
    loss = make_subject(brought(name)).client.loss
    assert isinstance(loss, UserLoss)
    return loss


def exposed(name: str, clients: int = 3, **changed: Any) -> Exposure:
    return expose_clients(make_subject(brought(name, **changed)), clients, 0)


def baseline(exposure: Exposure) -> AttackResult:
    guess = prior_only(iterations=20).guess(exposure.knowledge, list(exposure.seeds))
    return judge(exposure.batch, guess, name="prior_only")


@pytest.mark.parametrize("name", BROUGHT)
def test_the_kind_of_targets_is_found_by_calling_the_loss(name: str) -> None:
    loss, kind = own_loss(name), BROUGHT[name][3]
    assert (loss.targets and loss.targets.kind) == kind
    assert (loss.reason == "") == (kind is not None)


@pytest.mark.parametrize("name", [name for name, case in BROUGHT.items() if case[3] is TargetKind.CLASSES])
def test_a_relaxed_loss_has_the_gradient_of_class_numbers(name: str) -> None:
    loss = own_loss(name)
    numbers = masks() if BROUGHT[name][2].ndim > 2 else torch.arange(M) % 3
    rows = F.one_hot(numbers, 3).movedim(-1, 1).float()
    output = drawn(*rows.shape).requires_grad_()
    function = F.cross_entropy if name == "soft rows" else loss.function
    (wanted,) = torch.autograd.grad(function(output, numbers), output)
    (got,) = torch.autograd.grad(loss(output, rows).mean(), output)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["masks", "multi-label", "one logit", "regression"])
@pytest.mark.parametrize("method", [cpl, ig], ids=["cpl", "ig"])
def test_the_simulated_gradient_is_that_of_plain_autograd(name: str, method: Any) -> None:
    """In float64, at the targets that the free numbers of a trial stand for."""
    exposure = exposed(name, 1)
    matching: Matching = method(iterations=1, labels=JOINT)
    double = Execution(dtype="float64", form="native")
    problem, _ = matching.prepare(exposure.model, exposure.observation, exposure.knowledge, exposure.seeds, double)
    loss, free = problem.facts.knowledge.loss, problem.unknowns.get("label")
    known = problem.facts.knowledge.labels
    assert isinstance(loss, UserLoss)
    assert loss.targets is not None
    targets = loss.targets.of(free[0]) if free is not None else known[0]  # type: ignore[index]
    if loss.targets.kind is TargetKind.VALUES and free is not None:
        targets = (loss.targets.middle + loss.targets.spread * free)[0]
    model = BROUGHT[name][0].double()
    try:
        value = loss(model(problem.unknowns["guess"][0]), targets).mean()
        wanted = torch.autograd.grad(value, list(model.parameters()))
    finally:
        model.float()
    facts, unknowns = take(problem.facts, 0), take(problem.unknowns, 0)
    clock = Clock(torch.zeros((), dtype=torch.int64), facts.key)
    simulated = matching.simulate(exposure.model, unknowns, facts.observation.rounds[0], facts.knowledge, clock)
    for mine, theirs in zip(simulated.update.values(), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["multi-label", "one logit", "regression"])
def test_inputs_and_targets_are_recovered_together(name: str) -> None:
    exposure = exposed(name, 2)
    run = attack(exposure, cpl(iterations=2, labels=JOINT), execution=ALONE)
    assert bool((run.scores.psnr > baseline(exposure).scores.psnr + 10).all())
    found = read_targets(exposure, [run])
    if isinstance(found, LabelReading):
        assert found.share == 1
        assert found.guessing < 1 or name == "one logit"  # whose two clients may hold the same label
    else:
        assert isinstance(found, TargetError)
        assert found.high < found.guessing / 10


def test_one_number_is_not_crossed_where_directions_are_compared() -> None:
    exposure = exposed("one number", 2)
    run = attack(exposure, ig(iterations=40, labels=JOINT), execution=ALONE)
    assert bool((run.scores.psnr > baseline(exposure).scores.psnr + 3).all())
    assert bool((run.reconstruction.mismatch < 0.1).all())  # on the wrong side of the output it ends near 2
    found = read_targets(exposure, [run])  # fitted to the update at the last guess
    assert isinstance(found, TargetError)
    assert found.value < found.guessing


def test_known_masks_give_the_images_of_a_segmentation() -> None:
    exposure = exposed("masks", 2)
    told = attack(exposure.with_labels(), cpl(iterations=2, labels="known"), execution=ALONE)
    assert bool((told.scores.psnr > baseline(exposure).scores.psnr + 10).all())
    assert torch.equal(told.reconstruction.targets, exposure.batch.targets)  # type: ignore[arg-type]
    searched = attack(exposure, cpl(iterations=2, labels=JOINT), execution=ALONE)
    assert isinstance(read_targets(exposure, [searched]), LabelReading)
    assert isinstance(read_targets(exposure, [told]), Untested | LabelReading)


@pytest.mark.parametrize("name", ["masks", "multi-label", "regression"])
def test_the_suite_runs_attackers_who_search_targets_and_those_who_know_them(name: str) -> None:
    entries, untested = plan_exposure(exposed(name))
    assert [entry.name for entry in entries] == ["cpl", f"cpl, {TARGETS}", "ig", f"ig, {TARGETS}"]
    assert [entry.knows_targets for entry in entries] == [False, True, False, True]
    assert {item.what for item in untested} == {"analytic"}


def test_of_a_loss_whose_targets_cannot_be_searched_only_the_bound_is_run() -> None:
    entries, untested = plan_exposure(exposed("absolute error"))
    assert [entry.name for entry in entries] == [f"cpl, {TARGETS}", f"ig, {TARGETS}"]
    assert {item.what for item in untested} == {"analytic", "cpl", "ig"}


def test_local_steps_are_attacked_too() -> None:
    local = LocalTraining(epochs=2, rate=0.1)
    exposure = exposed("multi-label", 2, client=local)
    names = [entry.name for entry in plan_exposure(exposure)[0]]
    assert names == [name for base in ("cpl", "ig", "sme") for name in (base, f"{base}, {TARGETS}")]
    run = attack(exposure, cpl(iterations=4, labels=JOINT), execution=ALONE)
    assert run.reconstruction.targets is not None
    assert run.reconstruction.targets.shape == (2, 1, 5)


@pytest.mark.slow
def test_an_audit_of_masks_names_its_bound() -> None:
    made = audit_target(brought("masks"), minutes=0.05, clients=2, remedies=False)
    assert made.grade not in (Grade.UNTESTED, Grade.A, Grade.B)
    assert {run.name for run in made.runs} <= {"cpl", f"cpl, {TARGETS}", "ig", f"ig, {TARGETS}"}
    assert made.recovered >= made.recovered_without_targets
    render(page_of_audit(made, command="x"))


@pytest.mark.parametrize(("given", "others"), [(False, True), (True, True), (True, False)])
def test_the_headline_says_whose_grade_it_is_if_only_attackers_with_the_targets_leak(
    *, given: bool, others: bool
) -> None:
    exposure = exposed("multi-label", 2)
    batch, blind = exposure.batch, baseline(exposure)
    exact = judge(batch, replace(blind.reconstruction, inputs=batch.inputs), name="exact")
    runs = (replace(exact if others else blind, name="ig"), replace(exact if given else blind, name=f"ig, {TARGETS}"))
    audit = Audit(
        name="Net", grade=grade(runs, [blind], None), minutes=1, seconds=1, seed=0, exposure=exposure,
        measures=measure(runs, [blind], None), runs=runs, nulls=(blind,),
    )  # fmt: skip
    assert audit.grade is Grade.F
    assert audit.needs_targets is not others
    assert audit_record(audit)["needs_targets"] is not others
    for words in (headline(audit), page_of_audit(audit, command="x").headline, repr(audit)):
        assert (GIVEN in words) is not others
        assert ("without them 0 of 2 were recovered" in words) is not others


def test_of_attackers_who_recover_as_much_the_one_who_knew_less_is_the_worst() -> None:
    exposure = exposed("multi-label", 1)
    entry = cpl(iterations=2, labels=JOINT)
    searched = attack(exposure, entry, name="cpl", execution=ALONE)
    told = attack(exposure.with_labels(), cpl(iterations=2, labels="known"), name=f"cpl, {TARGETS}", execution=ALONE)
    worst = worst_run([told, searched], [baseline(exposure)])
    assert worst is not None
    assert worst.name == "cpl"


@pytest.mark.parametrize("name", ["multi-label", "regression"])
def test_peek_searches_the_targets(name: str) -> None:
    model, loss, labels, _ = BROUGHT[name]
    made = peek(model, images()[:1], torch.as_tensor(labels)[:1].float(), loss=loss, iterations=3, noise=False)
    assert float((made.inputs - images()[:1]).square().mean()) < 1e-3


def test_peek_says_why_targets_cannot_be_searched() -> None:
    model, loss, labels, _ = BROUGHT["absolute error"]
    with pytest.raises(InputError, match="L1Loss") as refused:
        peek(model, images()[:1], labels[:1], loss=loss, noise=False)
    assert "\n" not in str(refused.value)


def test_asking_for_an_attack_brings_the_variant_that_is_told_the_targets() -> None:
    exposure = exposed("multi-label", 1)
    entries, untested = choose_attacks(*plan_exposure(exposure), ["cpl"], exposure)
    assert [entry.name for entry in entries] == ["cpl", f"cpl, {TARGETS}"]
    assert {item.what for item in untested if item.left_out} == {"ig", f"ig, {TARGETS}"}
