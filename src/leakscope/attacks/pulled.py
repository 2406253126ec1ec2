"""The attacker who learns the gradient of a private loss at the features instead of guessing the private head.

Whatever the private head, codes, margin and weights, the private loss of example i adds to the shared gradient only through its
gradient at the features h_i that both heads read:

    r_i = dL_private / dh_i        (SPN: -a2 sum over bits short of the margin of t_k V_k)

so the shared gradient is that of `a1 * CE + mean_i r_i . h_i` with r_i held fixed. An informed attacker optimises r_i ("pull")
with the guess: one number per feature and smooth, where a dummy head has `bits` times as many and kinks at the margins. Bits,
codes and weights need not be known. Not in the paper, whose attacker is not informed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from leakscope.attacks.attack import Extra, Matching
from leakscope.attacks.polarised import DummyPolarised, HeadGradient
from leakscope.attacks.priors import GUESS
from leakscope.attacks.settings import LBFGSSettings, lbfgs_attack
from leakscope.attacks.simulate import OneGradient, network_key, present_of, simulator_kinds, targets_of, weights_of
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.signature import settings_of
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Round
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import Loss, loss_of
from leakscope.learning.polarisation import BIAS, WEIGHT, public_head, with_second_head

PULL = "pull"
UNIT = 0.1  # r per 1 of the unknown: the first L-BFGS step is the same for pixels and pulls


@dataclass(frozen=True, slots=True)
class Zeros:
    """The start of the pull: N rows of zeros."""

    features: int

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the zeros."""
        del key
        return torch.zeros(knowledge.samples, self.features)


@dataclass(frozen=True, slots=True)
class NoPull:
    """The start of the pull for any network: 0 at every feature."""

    def for_model(self, model: Model) -> Extra:
        """Return the start for this network."""
        return Zeros(model.parameters[public_head(model).weight].shape[1])


@dataclass(frozen=True, slots=True)
class _PulledLoss:
    """`a1 * loss(u, y) + r_i . h_i` of each example; column C + i of the output is r_i . h for every h."""

    loss: Loss
    classes: int
    alpha1: float | Tensor

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        pulls = torch.diagonal(output[..., self.classes :], dim1=-2, dim2=-1)
        return self.alpha1 * self.loss(output[..., : self.classes], target) + pulls


@dataclass(frozen=True, slots=True)
class Pulled:
    """The gradient of the guess under a private loss whose gradient at the features is the unknown `pull` times `unit`."""

    alpha1: float | Tensor = 1.0
    unit: float = UNIT

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated gradient of the public parameters."""
        guess, rows = unknowns[GUESS], self.unit * unknowns[PULL]
        targets = targets_of(unknowns, knowledge, model.classes)
        polarised = with_second_head(model, rows.shape[0])
        weights = {**weights_of(model, seen), WEIGHT: rows}
        if BIAS in polarised.parameters:
            weights[BIAS] = torch.zeros_like(rows[:, 0])
        loss = _PulledLoss(loss_of(knowledge.loss), model.classes, self.alpha1)
        key = network_key(model, clock)
        gradient, _, output, _ = loss_and_gradient(
            polarised, loss, weights, seen.buffers, guess, targets, present_of(guess, knowledge), key
        )
        return Simulated(polarised.shared(gradient), output[..., : model.classes], targets)


@settings_of(lbfgs_attack)
def spn_pull(*, alpha1: float = 1.0, unit: float = UNIT, **settings: Unpack[LBFGSSettings]) -> Matching:
    """Knows that there is a private head: learns the private loss's gradient at the features of each example with the guess.

    `unit` scales the pull relative to the pixels. Labels are read from the public head, which the private loss does not reach.
    """
    if not (0 <= alpha1 < math.inf and 0 < unit < math.inf):
        raise InputError(f"spn_pull needs alpha1 of at least 0 and a unit above 0, both finite, got {alpha1}, {unit}")
    attack = lbfgs_attack("spn_pull", **settings)
    return replace(attack, simulate=Pulled(alpha1, unit), extras={PULL: NoPull()})


def learn_pull(attack: Matching, knowledge: Knowledge) -> Matching:
    """Return the attack with its one gradient replaced by `Pulled`; unchanged without a known private head or if it models one."""
    head = knowledge.private_head
    if head is None or simulator_kinds(attack.simulate) & {Pulled, DummyPolarised, HeadGradient}:
        return attack
    simulate = _in_place(attack.simulate, Pulled(head["alpha1"]))
    return replace(attack, simulate=simulate, extras={**attack.extras, PULL: NoPull()})


def _in_place(simulate: Simulator, pulled: Pulled) -> Simulator:
    """Return the simulator with the `OneGradient` inside it replaced by the pull."""
    if isinstance(simulate, OneGradient):
        return pulled
    inner = getattr(simulate, "inner", None)
    if inner is None:
        raise InputError(f"{type(simulate).__name__} holds no OneGradient that a private head could pull at")
    wrapper: Simulator = simulate
    replaced: Simulator = replace(wrapper, inner=_in_place(inner, pulled))  # type: ignore[type-var]
    return replaced
