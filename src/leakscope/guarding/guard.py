"""`leakscope.guard(target, sent)`: a client attacks its own update before it sends it.

| check | is | when it cannot be run |
|---|---|---|
| static | the update is finite and belongs to the model; the lines of `leakscope.inspect` | the guard fails |
| labels | the label rules of the audit | not applicable |
| exact | division and peeling of a first dense layer | not applicable |
| matching | a short attack that matches the update | the guard fails: nothing else decides such a model |

With `GuardSettings.share` the matching attacks rest in most rounds (`guard_history`). What did not run is logged as not checked.
The attacks get Observation and Knowledge as in an audit. The client's batch only scores their results.
"""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from leakscope.auditing.limits import Budget, first_line
from leakscope.auditing.remedies import stacked
from leakscope.auditing.target import Target, list_defences
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.differentiate import load_transforms
from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, subtract
from leakscope.defences.stack import begin, protect
from leakscope.guarding.checks import check_update
from leakscope.guarding.history import GuardHistory, task_of
from leakscope.guarding.settings import BROKEN, MOST_SECONDS, Check, Decision, GuardSettings, Status

FIRST_SHARE = 0.5  # of the time, for the update as it is, where a defence may have to be checked after it


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """The decision on an update, what may be sent (None: nothing), and the checks behind it."""

    decision: Decision
    sent: Tree | None
    reason: str
    checks: tuple[Check, ...]
    seconds: float
    history: GuardHistory | None = None  # after this round, if one was given

    __repr__ = short_repr

    def line(self) -> dict[str, object]:
        """Return the decision as plain data, without anything of the update or the batch."""
        checks = [{**asdict(check), "status": check.status.value} for check in self.checks]
        return {"decision": self.decision.value, "reason": self.reason, "seconds": self.seconds, "checks": checks}


class GuardWarning(UserWarning):
    """An update was sent that a check read back, or that no check could be run on."""


def guard(
    target: Target,
    sent: Mapping[str, torch.Tensor],
    *,
    settings: GuardSettings | None = None,
    history: GuardHistory | None = None,
    seed: int | None = None,
    about: Mapping[str, object] | None = None,
) -> Guarded:
    """Return the decision on an update before it is sent, and what may be sent.

    `target` holds the model with the weights that the client received, the client's whole batch and its local training; `sent` is the
    gradient, or with local training the weights after it. Other floating arrays in `sent`, such as batch norm statistics, are
    defended with the rest, but no check reads them. Noise comes from the system's secure randomness unless a `seed` is given, for
    experiments only. `history` goes with `GuardSettings.share`: `history.trained(seconds)` of the result before. `about` is added
    to the line of the log.
    """
    settings = GuardSettings() if settings is None else settings
    if (history is None) != (settings.share is None):
        raise InputError("guard(history=...) and GuardSettings.share belong together: give both or neither")
    load_transforms()
    began = time.monotonic()
    task = "" if history is None else task_of(target, settings)
    resting = history if history is not None and history.rests(task, settings.share or 1.0) else None
    checks: list[Check] = []
    decision, update, reason = _decide(target, dict(sent), settings, seed, began, checks, resting)
    result = Guarded(decision, update, reason, tuple(checks), time.monotonic() - began)
    if history is not None:
        after = history.guarded(task, decision, result.checks, result.seconds, rested=resting is not None)
        result = replace(result, history=after)
    if settings.log is not None:
        line = {"time": time.time(), **(about or {}), **result.line()}
        with Path(settings.log).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
    if decision is Decision.WARN or (update is not None and any(check.status in BROKEN for check in checks)):
        warnings.warn(f"the update was sent although {reason}", GuardWarning, stacklevel=2)
    return result


def _decide(
    target: Target,
    sent: Tree,
    settings: GuardSettings,
    seed: int | None,
    began: float,
    checks: list[Check],
    resting: GuardHistory | None,
) -> tuple[Decision, Tree | None, str]:
    """Return the decision, what is sent and why; add the checks to `checks`."""
    defending = settings.action is Decision.DEFEND
    part = FIRST_SHARE if defending else 1.0
    worst = check_update(target, sent, settings, Budget(part * settings.seconds, began), checks, resting)
    if worst is None:
        return Decision.SEND, sent, _nothing(checks)
    if worst.status in BROKEN:
        return (Decision.SEND, sent, _words(worst)) if settings.fail_open else (Decision.REFUSE, None, _words(worst))
    if not defending:
        return settings.action, sent if settings.action is Decision.WARN else None, _words(worst)
    again: list[Check] = []
    try:
        target, sent = _defended(target, sent, settings, seed)
        left = check_update(target, sent, settings, Budget(settings.seconds, began), again)
    except Exception as error:  # a defence of the user's may raise anything
        left = Check("defence", Status.FAILED, note=first_line(error))
        again.append(left)
    checks += [replace(check, defended=True) for check in again]
    broken = left is not None and left.status in BROKEN and left.name != "defence"
    if left is None or (broken and settings.fail_open):
        return Decision.DEFEND, sent, _words(worst if left is None else left)
    return Decision.REFUSE, None, f"{_words(left)}, after the defence was added"


def _nothing(checks: Sequence[Check]) -> str:
    """Return in words what read nothing back, with the evaluations of every matching attack, and what was not checked."""
    matched = "; ".join(f"{check.name}: {check.note}" for check in checks if check.evaluations is not None)
    unchecked = "; ".join(f"{check.name}: {check.note}" for check in checks if check.status is Status.NOT_CHECKED)
    reason = f"no check read anything back ({matched})" if matched else "no matching attack was run in this round"
    return f"{reason}; not checked: {unchecked}" if unchecked else reason


def _words(check: Check) -> str:
    """Return a check's result in words."""
    what = "labels" if check.name == "labels" else "examples"
    share = f"{check.recovered:.0%} of the {what}" if check.recovered is not None else check.note
    if check.status is Status.TIMED_OUT and check.evaluations is not None:
        share = check.note
    return f"{check.name} {check.status.value}{f': {share}' if share else ''}"


def _defended(target: Target, sent: Tree, settings: GuardSettings, seed: int | None) -> tuple[Target, Tree]:
    """Return the target with the added defences, and the update after them."""
    added, client = list_defences(settings.defences), target.client
    local = client.local if isinstance(client, Client) else client
    held = dict(target.model.named_parameters()) | dict(target.model.named_buffers())
    ours = {name: value for name, value in sent.items() if value.is_floating_point()}
    before = {name: held[name].detach().to(value) if local else torch.zeros_like(value) for name, value in ours.items()}
    change = subtract(before, ours) if local else ours
    key = random.key(secrets.randbits(63) if seed is None else seed)
    change, _ = protect(added, change, begin(added, change), key)
    stack = (client.defences if isinstance(client, Client) else ()) or list_defences(target.defences)
    for each in added:
        stack = stacked(stack, each)
    client = replace(client, defences=()) if isinstance(client, Client) else client
    return replace(target, client=client, defences=stack), {**sent, **(subtract(before, change) if local else change)}


def warm_up() -> None:
    """Load the code of all checks, so that the first update is not charged for it."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sigmoid(), torch.nn.Linear(2, 2))
    x, y = torch.tensor([[0.2, 0.9], [0.7, 0.1]]), torch.tensor([0, 1])
    names = [name for name, _ in net.named_parameters()]
    gradient = torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), y), list(net.parameters()))
    settings = GuardSettings(threshold=1.0, seconds=MOST_SECONDS, evaluations=5)
    guard(Target(model=net, inputs=x, labels=y), dict(zip(names, gradient, strict=True)), settings=settings)
