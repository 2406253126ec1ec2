"""Simulators: map the unknowns of one trial to the update they would have caused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.priors import GUESS
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, interpolate, subtract
from leakscope.core.types import Knowledge, Round
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import UserLoss, loss_of, one_hot

LABEL = "label"
ALPHA = "alpha"
SHIFT = "shift"


def targets_of(unknowns: Tree, knowledge: Knowledge, classes: int) -> Tensor:
    """Return the rows that the loss compares with: softmax of the label unknown, or the known labels as one-hot; or its own targets."""
    if isinstance(knowledge.loss, UserLoss):
        return knowledge.loss.targets_from(unknowns.get(LABEL), knowledge.labels)
    if LABEL in unknowns:
        return torch.softmax(unknowns[LABEL], dim=-1)
    if knowledge.labels is None:
        raise InputError("this attack needs labels: set Knowledge.labels, give it a label rule, or optimise them")
    return one_hot(knowledge.labels, classes, unknowns[GUESS].dtype)


def weights_of(model: Model, seen: Round) -> Tree:
    """Return all weights at the start of the round; raise if the attacker never received some of them."""
    missing = sorted(set(model.parameters) - set(seen.before))
    if missing:
        raise InputError(
            f"model {model.name!r} keeps {', '.join(missing)} private: the attacker cannot run it; use a simulator that "
            "estimates the missing weights"
        )
    return seen.before


def present_of(guess: Tensor, knowledge: Knowledge) -> Tensor:
    """Return which samples of the guess count: all, or those known for a smaller client."""
    if knowledge.present is not None:
        return knowledge.present
    return torch.ones(guess.shape[0], dtype=torch.bool, device=guess.device)


def network_key(model: Model, clock: Clock) -> Tensor:
    """Return the key of the network's draws at this iteration; not folded if it draws nothing, which saves a hundred operations."""
    return random.fold(random.fold(clock.key, "network"), clock.iteration) if model.draws else clock.key


@dataclass(frozen=True, slots=True)
class OneGradient:
    """The gradient of the mean loss over the guess at the weights the client started from (DLG, CPL, IG)."""

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated gradient."""
        guess = unknowns[GUESS]
        targets = targets_of(unknowns, knowledge, model.classes)
        present = present_of(guess, knowledge)
        key = network_key(model, clock)
        gradient, _, output, _ = loss_and_gradient(
            model, loss_of(knowledge.loss), weights_of(model, seen), seen.buffers, guess, targets, present, key
        )
        return Simulated(model.shared(gradient), output, targets)


@dataclass(frozen=True, slots=True)
class OnTheLine:
    """The inner simulator at `(1 - a) w0 + a wT` with a learned `a` (SME's surrogate); `wT` are the weights sent."""

    inner: Simulator

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update at the surrogate weights."""
        between = interpolate({name: seen.before[name] for name in seen.sent}, seen.sent, unknowns[ALPHA])
        return self.inner(model, unknowns, replace(seen, before={**seen.before, **between}), knowledge, clock)


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The weight change `w0 - wT` that the client's local training would send for the guess (DLFA's simulation).

    Needs `Knowledge.local`. The order of the examples is `Knowledge.order` if known, else drawn from the trial's key. `segment`
    recomputes that many steps at a time in the backward pass. The output is computed for the first `shown` examples (None: all).
    """

    segment: int | None = None
    shown: int | None = None

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated change of the weights."""
        local = knowledge.local
        if local is None:
            raise InputError(
                "simulating local steps needs Knowledge.local (epochs, batch size, rate), which is not known"
            )
        guess = unknowns[GUESS]
        targets = targets_of(unknowns, knowledge, model.classes)
        present = present_of(guess, knowledge)
        key = random.fold(clock.key, "network") if model.draws else clock.key
        order = draw_order(local, guess.shape[0], clock.key, present) if knowledge.order is None else knowledge.order
        before = weights_of(model, seen)
        after, _ = train(
            model,
            loss_of(knowledge.loss),
            local,
            before,
            seen.buffers,
            guess,
            targets,
            present,
            order,
            key,
            segment=self.segment,
        )
        output, _ = model.apply(before, seen.buffers, guess[: self.shown], key)
        return Simulated(model.shared(subtract(before, after)), output, targets[: self.shown])


def simulator_kinds(simulate: Simulator) -> set[type]:
    """Return the types of a simulator and of all it wraps."""
    inner = getattr(simulate, "inner", None)
    return {type(simulate)} | (simulator_kinds(inner) if inner is not None else set())


SIMULATORS = {"one_gradient": OneGradient, "on_the_line": OnTheLine, "local_steps": LocalSteps}
