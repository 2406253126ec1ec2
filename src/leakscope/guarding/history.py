"""What a guard remembers between the rounds of a client, so that matching attacks cost a share of the training only."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from leakscope.auditing.limits import positive_number
from leakscope.guarding.settings import BROKEN, Check, Decision, GuardSettings, Status

if TYPE_CHECKING:
    from leakscope.auditing.target import Target


@dataclass(frozen=True, slots=True)
class GuardHistory:
    """The rounds of one client so far: seconds of training and guard, and the task that the matching attacks last passed.

    A task is the structure of the model, the shape of the batch, the local training and the settings of the guard; not the weights.
    """

    training: float = 0.0
    guard: float = 0.0
    task: str = ""
    cost: float = 0.0  # seconds of the guard with the matching attacks
    evaluations: int = 0  # the fewest that one of them took
    rounds: int = 0  # since then
    exact: bool = True  # whether an exact attack may read an update of the task

    def trained(self, seconds: float) -> GuardHistory:
        """Return the history after a local training of so many seconds."""
        return replace(self, training=self.training + positive_number(seconds, "seconds", math.inf))

    def rests(self, task: str, share: float) -> bool:
        """Return whether the matching attacks rest: they passed on this task, and to run them would exceed the share of all rounds."""
        spent = self.guard + self.cost
        return task == self.task and spent > share * (spent + self.training)

    def guarded(
        self, task: str, decision: Decision, checks: tuple[Check, ...], seconds: float, *, rested: bool
    ) -> GuardHistory:
        """Return the history after a round of the guard; only an update that all checks let pass lets the attacks rest."""
        history = replace(self, guard=self.guard + seconds, rounds=self.rounds + 1)
        if decision is not Decision.SEND or any(check.status in BROKEN for check in checks):
            return replace(history, task="")
        if rested:
            return history
        evaluations = min(check.evaluations for check in checks if check.evaluations is not None)
        exact = any(check.exact and not check.by_structure for check in checks)
        return replace(history, task=task, cost=seconds, evaluations=evaluations, rounds=0, exact=exact)

    def rest(self, name: str) -> Check:
        """Return the check of an attack that rests."""
        when = f"{self.rounds + 1} round{'s' if self.rounds else ''} ago"
        return Check(name, Status.NOT_CHECKED, note=f"it last passed {when}, with {self.evaluations} evaluations")


def task_of(target: Target, settings: GuardSettings) -> str:
    """Return a digest of what a guard is asked to check, whatever the weights and the update."""
    layers = [
        (name, type(layer).__qualname__, layer.extra_repr(), layer.training, [*map(_kind, layer._parameters.items())])
        for name, layer in target.model.named_modules()
    ]
    shape = None if target.inputs is None else tuple(target.inputs.shape)
    learning = (target.loss, target.client, target.defences, target.mean, target.std)
    facts = (layers, shape, *learning, replace(settings, log=None))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _kind(parameter: tuple[str, Tensor | None]) -> tuple[object, ...]:
    """Return what is told of a parameter of a layer: nothing of its values."""
    name, value = parameter
    return (name,) if value is None else (name, *value.shape, str(value.dtype), value.requires_grad)
