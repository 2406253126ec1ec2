"""Attacks on a client with a Secret Polarization Network: one that ignores it, and two that know of it (`pulled` has a third).

In Fan et al. 2020, arXiv:2006.11601, algorithm 5, the attacker matches gradients of the cross entropy alone: "attacker doesn't
know the existence of private term". Informed attackers can do more; `pulled` is the strongest we know.

- `spn_aware` adds a dummy private head and dummy codes to its network and optimises them together with the guess. The private
  loss reaches the backbone through `-a2 sum_k t_k V_k` over the bits short of the margin, a product of head, codes and a2: the
  length of the dummy head compensates for a wrong a2.
- `spn_head` compares the gradient of the public head alone, dL/dW = a1 (p - y) h^T and dL/db = a1 (p - y). The private loss
  never reaches that layer, so it reveals the label and the features h as without a defence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from leakscope.attacks.attack import Extra, Matching
from leakscope.attacks.labels import JOINT
from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS, TotalVariation
from leakscope.attacks.settings import LBFGSSettings, lbfgs_attack
from leakscope.attacks.simulate import network_key, present_of, targets_of, weights_of
from leakscope.attacks.view import Clock, Objective, Simulated, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.signature import settings_of
from leakscope.core.tree import Tree, scale
from leakscope.core.types import Knowledge, Round
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import loss_of
from leakscope.learning.polarisation import (
    BIAS,
    CODES,
    WEIGHT,
    PolarisedLoss,
    public_head,
    with_codes,
    with_second_head,
)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Values of a given shape in U(-spread, spread)."""

    shape: tuple[int, ...]
    spread: float

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the values."""
        del knowledge
        return self.spread * (2 * random.uniform(key, self.shape) - 1)


@dataclass(frozen=True, slots=True)
class Dummy:
    """The start of one part of a dummy private head: its weight, its bias or its codes (before tanh).

    Without a `spread` weight and bias start in the range of PyTorch's dense layers. Codes start in U(-1, 1).
    """

    part: str
    bits: int
    spread: float | None = None

    def for_model(self, model: Model) -> Extra:
        """Return the start for this network."""
        features = model.parameters[public_head(model).weight].shape[1]
        edge = 1 / math.sqrt(features) if self.spread is None else self.spread
        shapes = {WEIGHT: (self.bits, features), BIAS: (self.bits,), CODES: (model.classes, self.bits)}
        return Uncertain(shapes[self.part], 1.0 if self.part == CODES else edge)


@dataclass(frozen=True, slots=True)
class DummyPolarised:
    """The gradient of the guess in a network with the dummy head and codes (tanh of their unknown); the private part is dropped."""

    alpha1: float | Tensor = 1.0
    alpha2: float | Tensor = 0.1
    margin: float | Tensor = 1.0

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated gradient of the public parameters."""
        guess = unknowns[GUESS]
        classes = targets_of(unknowns, knowledge, model.classes)
        targets = with_codes(classes, torch.tanh(unknowns[CODES]))
        polarised = with_second_head(model, unknowns[WEIGHT].shape[0])
        weights = {**weights_of(model, seen), WEIGHT: unknowns[WEIGHT]}
        if BIAS in polarised.parameters:
            weights[BIAS] = unknowns[BIAS]
        loss = PolarisedLoss(loss_of(knowledge.loss), model.classes, self.alpha1, self.alpha2, self.margin)
        key = network_key(model, clock)
        gradient, _, output, _ = loss_and_gradient(
            polarised, loss, weights, seen.buffers, guess, targets, present_of(guess, knowledge), key
        )
        return Simulated(polarised.shared(gradient), output[..., : model.classes], classes)


@dataclass(frozen=True, slots=True)
class _WithBackbone:
    """A network as a function of its head alone; its other parameters are fixed."""

    model: Model
    rest: Tree

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        return self.model.apply({**self.rest, **parameters}, buffers, x, key)


@dataclass(frozen=True, slots=True)
class HeadGradient:
    """`alpha1` times the gradient of the public head alone, at the weights the client started from."""

    alpha1: float | Tensor = 1.0

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated gradient of the last dense layer."""
        guess, head, weights = unknowns[GUESS], public_head(model), weights_of(model, seen)
        targets = targets_of(unknowns, knowledge, model.classes)
        names = [name for name in (head.weight, head.bias) if name is not None]
        small = replace(model, apply=_WithBackbone(model, {n: w for n, w in weights.items() if n not in names}))
        key = network_key(model, clock)
        gradient, _, output, _ = loss_and_gradient(
            small,
            loss_of(knowledge.loss),
            {name: weights[name] for name in names},
            seen.buffers,
            guess,
            targets,
            present_of(guess, knowledge),
            key,
        )
        return Simulated(scale(gradient, self.alpha1), output, targets)


@dataclass(frozen=True, slots=True)
class OnSimulated:
    """The inner objective on the simulated parameters only."""

    inner: Objective = field(default_factory=Match)

    needs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch of one trial in one round."""
        observed = {name: view.observed[name] for name in view.simulated.update}
        return self.inner(replace(view, observed=observed))


@settings_of(lbfgs_attack, labels=JOINT)
def spn_unaware(**settings: Unpack[LBFGSSettings]) -> Matching:
    """Algorithm 5 of the SPN paper (Fan et al. 2020): DLG from a patterned start, unaware of the private head."""
    return lbfgs_attack("spn_unaware", **settings)


@settings_of(lbfgs_attack)
def spn_aware(
    *,
    bits: int = 64,
    alpha1: float = 1.0,
    alpha2: float = 0.1,
    margin: float = 1.0,
    spread: float | None = None,
    **settings: Unpack[LBFGSSettings],
) -> Matching:
    """Knows that a Secret Polarization Network exists: a dummy private head and dummy codes are optimised with the guess.

    `bits`, `alpha1`, `alpha2`, `margin` and `spread` are its assumptions. Labels are read from the public head.
    """
    _check_numbers("spn_aware", {"alpha1": alpha1, "alpha2": alpha2, "margin": margin, "spread": spread})
    if not isinstance(bits, int) or bits < 1:
        raise InputError(f"spn_aware(bits=...) must be a whole number of at least 1, got {bits}")
    if not (0 <= alpha1 < math.inf and 0 <= alpha2 < math.inf and 1 <= margin < math.inf):
        raise InputError(
            f"spn_aware needs alpha1 and alpha2 of at least 0 and a margin of at least 1, all finite, "
            f"got {alpha1}, {alpha2}, {margin}"
        )
    if spread is not None and not 0 < spread < math.inf:
        raise InputError(f"spn_aware(spread=...) must be in (0, inf) or left out, got {spread}")
    extras = {part: Dummy(part, bits, spread) for part in (WEIGHT, BIAS, CODES)}
    attack = lbfgs_attack("spn_aware", **settings)
    return replace(attack, simulate=DummyPolarised(alpha1, alpha2, margin), extras=extras)


@settings_of(lbfgs_attack)
def spn_head(*, alpha1: float = 1.0, tv: float = 0.0, **settings: Unpack[LBFGSSettings]) -> Matching:
    """Knows that a Secret Polarization Network exists: compares the gradient of the public head alone, which is not hidden.

    That layer has fewer equations (features and classes) than most images have pixels; `tv` adds total variation.
    """
    _check_numbers("spn_head", {"alpha1": alpha1, "tv": tv})
    if not (0 < alpha1 < math.inf and 0 <= tv < math.inf):
        raise InputError(f"spn_head needs alpha1 above 0 and tv of at least 0, both finite, got {alpha1}, {tv}")
    attack = lbfgs_attack("spn_head", **settings)
    return replace(
        attack,
        simulate=HeadGradient(alpha1),
        objective=OnSimulated(attack.objective),
        priors=(TotalVariation(tv),) if tv else (),
    )


def _check_numbers(attack: str, given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, Real):
            raise InputError(f"{attack}({name}=...) must be a number, got {value!r:.80}")
