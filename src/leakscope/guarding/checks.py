"""The checks of a guard: what the update of one client exposes, and the attacks on it within a time budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.labels import LABEL_RULES, chosen_rule
from leakscope.auditing.attack_runs import check_finite, plan_exposure
from leakscope.auditing.attempts import evaluations_of
from leakscope.auditing.chosen_attacks import suite_name
from leakscope.auditing.limits import Budget, Pace, first_line
from leakscope.auditing.static.inspection import inspect
from leakscope.auditing.suite import Entry, labels_problem
from leakscope.auditing.target import Subject, Target, make_subject
from leakscope.clients import attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, to
from leakscope.core.types import Observation, Round, Shares, make_batch
from leakscope.guarding.history import GuardHistory
from leakscope.guarding.scoring import share_recovered
from leakscope.guarding.settings import BROKEN, Check, GuardSettings, Status
from leakscope.metrics.labels import label_overlap
from leakscope.play import Exposure, is_defended, reconstruct

Step = Callable[[], Check]


def check_update(
    target: Target,
    sent: Tree,
    settings: GuardSettings,
    budget: Budget,
    checks: list[Check],
    resting: GuardHistory | None = None,  # in place of the matching attacks
) -> Check | None:
    """Return the check that read the update back, else the first that failed or ran out of time, else None; add all to `checks`."""
    steps: list[tuple[str, Step]] = []
    trained: Tree = {name: value for name, value in target.model.named_parameters() if value.requires_grad}

    def prepare() -> Check:
        _check_others(target.model, trained, sent)
        if (
            resting is not None and not resting.exact and settings.label_threshold == 1
        ):  # nothing is left to attack with
            _check_sent(trained, sent)
            steps.extend(_settled(resting.rest(name)) for name in ("labels", *settings.attacks))
            note = ""
        else:
            exposure, subject = expose_update(target, sent)
            check_finite(exposure)
            steps.extend(_steps(exposure, subject, settings, budget, resting))
            note = _static(target, exposure.batch.samples, sent)
        steps.extend(_unread(target.model, trained, sent))
        return Check("static", Status.PASSED, note=note)

    steps.append(("static", prepare))
    broken: Check | None = None
    for name, step in steps:
        check = _timed(name, step, budget)
        checks.append(check)
        if check.status is Status.LEAKED:
            return check
        broken = broken or (check if check.status in BROKEN else None)
        if broken is not None and not settings.fail_open:
            break
    return broken


def _timed(name: str, step: Step, budget: Budget) -> Check:
    """Return a check with its seconds; one that raises has failed, one that begins or ends too late has timed out."""
    start = budget.clock()
    if not budget.left:
        return Check(name, Status.TIMED_OUT)
    try:
        check = step()
    except Exception as error:  # an attack or a user's network may raise anything
        check = Check(name, Status.FAILED, note=first_line(error))
    late = not budget.left and check.evaluations is None  # a matching attack ends with the time
    if late and check.status in (Status.PASSED, Status.NOT_APPLICABLE):
        check = replace(check, status=Status.TIMED_OUT)
    return replace(check, seconds=budget.clock() - start)


def _settled(check: Check) -> tuple[str, Step]:
    """Return a step that has its result already."""
    return check.name, lambda: check


def _steps(
    exposure: Exposure, subject: Subject, settings: GuardSettings, budget: Budget, resting: GuardHistory | None
) -> Iterator[tuple[str, Step]]:
    """Yield the attacks on an update by name, cheapest first."""

    def attacked(exposure: Exposure, entry: Entry, most: float = math.inf, share: int = 1) -> tuple[str, Step]:
        def step() -> Check:
            return _attacked(
                exposure, entry, settings, Pace(until=budget.end - (1 - 1 / share) * budget.left, most=most)
            )

        return entry.name, step

    yield "labels", lambda: _labels(exposure, settings)
    entries, untested = plan_exposure(exposure, unmatched=subject.unmatched)
    reasons = {each.what: each.why for each in untested}
    if "analytic" in reasons:
        yield _settled(Check("analytic", Status.NOT_APPLICABLE, note=reasons["analytic"], by_structure=True))
    yield from (attacked(exposure, entry) for entry in entries if entry.most is None)
    if resting is not None:
        yield from (_settled(resting.rest(name)) for name in settings.attacks)
        return
    searched = _searched(exposure, settings.guesses)
    entries, _ = plan_exposure(searched, unmatched=subject.unmatched)
    for place, name in enumerate(settings.attacks):
        matching = [each for each in entries if each.most is not None and suite_name(each.name) == name]
        if matching:  # the last one knows the defences, if there are any
            yield attacked(searched, matching[-1], settings.evaluations, len(settings.attacks) - place)
        else:
            why = reasons.get(name, "it does not apply to this client")
            yield _settled(Check(name, Status.FAILED, note=why))


def _searched(exposure: Exposure, most: int) -> Exposure:
    """Return the exposure to an attacker who searches at most so many examples: what it costs does not grow with the batch."""
    N, local = exposure.batch.samples, exposure.client.local
    if most >= N:
        return exposure
    local = None if local is None else replace(local, epochs=local.steps(N), batch_size=None)  # as many steps
    few = replace(exposure.knowledge, samples=most, local=local)
    informed = None if exposure.informed is None else replace(exposure.informed, samples=most, local=local)
    return replace(exposure, knowledge=few, informed=informed)


def _labels(exposure: Exposure, settings: GuardSettings) -> Check:
    """Return the check by the label rule that attacks use."""
    knowledge = exposure.known(informed=True)
    problem = labels_problem(exposure.model, knowledge, exposure.observation.shares)
    if problem is not None:
        return Check("labels", Status.NOT_APPLICABLE, note=problem)
    rule = chosen_rule("auto", knowledge.samples, known=False)
    keys = random.key(list(exposure.seeds), device=exposure.device)
    guess = LABEL_RULES[rule](exposure.model, exposure.observation, to(knowledge, device=exposure.device), keys).cpu()
    share = float(label_overlap(exposure.batch.labels, guess, exposure.batch.mask))
    return Check("labels", _above(share, settings.label_threshold), share, note=rule)


def _static(target: Target, samples: int, sent: Tree) -> str:
    """Return the lines of `leakscope.inspect` in words; they come from shapes, not from the batch."""
    shape = None if target.inputs is None else target.inputs.shape[1:]
    buffers = any(name in sent for name, _ in target.model.named_buffers())
    lines = inspect(target.model, batch=samples, client=target.client, input_shape=shape, sends_buffers=buffers)
    return "; ".join(lines.shown())


def _unread(module: nn.Module, trained: Tree, sent: Tree) -> Iterator[tuple[str, Step]]:
    """Yield the check that was not made: what is sent besides the trained parameters, if anything."""
    others = [name for name, value in sent.items() if value.is_floating_point() and name not in trained]
    if others:
        norms = {n for n, each in module.named_modules() if isinstance(each, _BatchNorm)}
        statistics = sum(name.rpartition(".")[0] in norms for name in others)
        note = f"no attack reads {len(others)} of the sent arrays, {statistics} of them statistics of batch norm"
        yield _settled(Check("buffers", Status.NOT_CHECKED, note=note))


def _check_sent(before: Tree, sent: Tree) -> None:
    """Refuse an update that is not finite or does not belong to the model."""
    for name, value in before.items():
        if name not in sent or sent[name].shape != value.shape:
            got = tuple(sent[name].shape) if name in sent else "nothing"
            raise InputError(f"sent[{name!r}] must have the shape {tuple(value.shape)} of the model, got {got}")
    if all(math.isfinite(sent[name].detach().sum()) for name in before):
        return
    for name in before:  # a sum may also overflow
        if not bool(sent[name].isfinite().all()):
            raise InputError(f"sent[{name!r}] holds NaN or infinity")


def _check_others(module: nn.Module, trained: Tree, sent: Tree) -> None:
    """Refuse what is sent beside the trained parameters if it is no array of the model, such as buffers of another network."""
    held = dict(module.named_parameters()) | dict(module.named_buffers()) | module.state_dict()
    for name, value in sent.items():
        if name in trained or not value.is_floating_point():
            continue
        if name not in held:
            raise InputError(f"sent[{name!r}] does not belong to the model: {type(module).__name__} has no such array")
        if held[name].shape != value.shape:
            want, got = tuple(held[name].shape), tuple(value.shape)
            raise InputError(f"sent[{name!r}] must have the shape {want} of the model, got {got}")
        if bool(value.isnan().any()):
            raise InputError(f"sent[{name!r}] holds NaN")


def _above(share: float, threshold: float) -> Status:
    return Status.LEAKED if share > threshold else Status.PASSED


def _attacked(exposure: Exposure, entry: Entry, settings: GuardSettings, pace: Pace) -> Check:
    """Return the check by one attack; one that was cut too short has not checked anything."""
    execution = Execution(device=str(exposure.device), form="loop", out_of_time=pace)  # one trial, by plain autograd
    try:
        guess = reconstruct(exposure, entry.make(entry.most or 0), execution, informed=entry.informed)
    except InputError as error:  # an exact attack says what it cannot read; a matching one has to run
        if entry.most is not None:
            raise
        return Check(entry.name, Status.NOT_APPLICABLE, note=str(error))
    recovered = share_recovered(exposure, guess, exact=entry.most is None)
    status = _above(recovered, settings.threshold)
    if entry.most is None:
        late = pace.ended and status is Status.PASSED
        return Check(entry.name, Status.TIMED_OUT if late else status, recovered)
    authors, evaluations = evaluations_of(entry), int(guess.evaluations.max())
    note = f"{evaluations} evaluations; its authors use up to {authors:g}"
    if pace.ended and evaluations < settings.enough and status is Status.PASSED:
        status, note = (
            Status.TIMED_OUT,
            f"too short: {evaluations} of {settings.enough} evaluations; its authors use up to {authors:g}",
        )
    return Check(entry.name, status, recovered, evaluations=evaluations, note=note)


def expose_update(target: Target, sent: Tree) -> tuple[Exposure, Subject]:
    """Return what this update of one client exposes, and the prepared target."""
    if target.inputs is None or target.labels is None:
        raise InputError("a guard needs the client's inputs and labels: they score what is recovered")
    subject = make_subject(replace(target, examples=len(target.inputs), aggregate=1))
    model, client = subject.model, subject.client
    _check_sent(model.shared(model.parameters), sent)
    before = {name: value[None] for name, value in model.shared(model.parameters).items()}
    targets = None if subject.targets is None else subject.targets[None]
    batch = make_batch(subject.inputs[None], subject.labels[None], classes=model.classes, targets=targets)
    seen = {name: sent[name].detach().to(value)[None] for name, value in before.items()}
    buffers = {name: value[None] for name, value in model.buffers.items()}
    shares = Shares.GRADIENT if client.local is None else Shares.WEIGHTS
    samples = batch.mask.sum(1).to(subject.device)
    observation = Observation((Round(before, buffers, seen),), shares, samples)
    knowledge = attacker_knowledge(model, client, batch)
    informed = knowledge_of_defences(knowledge, client, observation) if is_defended(client) else None
    return Exposure(model, client, batch, (0,), observation, knowledge, informed), subject
