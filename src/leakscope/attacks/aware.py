"""The attacker who knows the defence: the same attack, told facts about what was done to the update.

`aware` reads the facts of Knowledge and changes how an attack compares, nothing else: same start, optimiser, priors, stop.

| told | the client did | the attack then |
|---|---|---|
| `mask` | sent some coordinates (random mask, compression) | compares those of each round alone |
| `mask`, `largest` | sent the largest (sparsify alone) | compares those; the others must be no larger than the smallest of them |
| `bound` | clipped the norm (of each tensor: `bound_each`) | compares directions, or clips its own update as well (`reclip`) |
| `bits` = 1 | sent signs | counts wrong signs |
| `bits` > 1 | rounded | compares beyond one rounding step, and with a tenth of the weight as it is |
| `sigma` | added noise | stops where noise alone explains the rest |
| `sigma_each` | added noise of another level to each tensor | counts each tensor's differences in units of its noise |
| `local` | trained for several steps | simulates them (`simulate=True`) |
| `policies` | transformed its pictures | looks through the transformations, learning what was drawn |
| `private_head` | trained a private head beside the public one | learns what it pulls at the features, with the guess |

DLFA weighs differences layer by layer and with priors: it compares what was sent, clips and allows for rounding likewise; signs are
refused, and noise changes nothing.

`analytic` and `linear_system` compare nothing: they read the mask by themselves.

Facts are told by the scenario, never taken from a defence: attacks do not know those types. Label rules read the same
Knowledge by themselves (see `labels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.defended import Clipped, LargestSent, Rounded, Sent, Whitened
from leakscope.attacks.distances import FLOORED, SCALED, angle, angle_per_tensor, disagreement, power_of
from leakscope.attacks.known_policy import learn_policy
from leakscope.attacks.objectives import (
    DEFENCE_FACTS,
    Compares,
    Match,
    compares_lengths,
    distance_of,
    facts_needed,
    innermost,
    wrap_innermost,
)
from leakscope.attacks.pulled import learn_pull
from leakscope.attacks.simulate import LocalSteps, OneGradient, OnTheLine, simulator_kinds
from leakscope.attacks.units import AtLeast, Gain, InNoiseUnits, PerGradient, Scaled, ToLength
from leakscope.attacks.view import Clock, Objective, Simulated, Simulator
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, add, scale
from leakscope.core.types import Knowledge, Observation, Round

# What is left to compare is small (directions differ by 1e-3 at a random start), and L-BFGS stops at absolute tolerances: it
# is read as if updates had the length 10 that LeNet's gradients have (4 on digits, 22 on Fashion-MNIST).
LENGTH = 10.0
MASKS = 8  # dropout masks that are averaged
PULL = 0.1  # of the distance to a rounded update itself: less leaves dense networks at a picture that few bits do not rule out


def aware(attack: Matching, knowledge: Knowledge, *, reclip: bool = False, simulate: bool = False) -> Matching:
    """Return the attack changed to use what Knowledge tells about defences; the same attack where it tells nothing.

    `reclip` clips the simulated update where a bound is told, instead of comparing directions (always where bits are told
    too): it also uses that an unclipped update was short, but takes the mask to come before the clip. `simulate` puts
    the client's local steps in the place of one gradient where `Knowledge.local` is told: exact, and as many times as
    expensive as there are steps. An objective that already uses facts about defences (`Sent`, `Clipped`, ...) stays as it is.

    The threshold of `Stop` stays as it is, but counts in another unit: see docs/aware.md.
    """
    attack = learn_pull(learn_policy(attack, knowledge), knowledge)
    stepped = (
        simulate and knowledge.local is not None and not simulator_kinds(attack.simulate) & {LocalSteps, OnTheLine}
    )
    if stepped:
        attack = replace(attack, simulate=_with_steps(attack.simulate))
    defended = any(fact is not None for fact in (knowledge.mask, knowledge.bound, knowledge.bits, knowledge.sigma))
    uses_facts = bool(DEFENCE_FACTS & (facts_needed(attack.objective) or frozenset()))
    if uses_facts or not (defended or stepped):
        return attack
    if isinstance(attack.objective, Match):
        return _in_units(attack, _comparison(attack, attack.objective, knowledge, reclip, stepped), knowledge)
    return _undone_inside(attack, knowledge) if defended else attack


def _undone_inside(attack: Matching, knowledge: Knowledge) -> Matching:
    """Return an attack whose objective is no plain Match (DLFA's, one on the head), with the facts put around what it compares.

    Such an objective weighs differences, so a clip is done to the simulated update as well, and signs cannot be used.
    """
    comparison = innermost(attack.objective)
    if not isinstance(comparison, Compares):
        raise InputError(
            f"aware() changes what is compared; attack {attack.name!r} has an objective of its own "
            f"({type(comparison).__name__}), which must use the facts itself or say that it compares (`sees_length`)"
        )
    if knowledge.bits is not None and bool((knowledge.bits == 1).any()):
        raise InputError(
            f"attack {attack.name!r} compares differences of weights, and signs have no size; use sme or ig"
        )
    objective: Objective = Rounded(comparison) if knowledge.bits is not None else comparison
    objective = Clipped(objective) if knowledge.bound is not None else objective
    objective = _of_sent(objective, knowledge)
    return replace(attack, objective=wrap_innermost(attack.objective, lambda _: objective))


def _of_sent(objective: Objective, knowledge: Knowledge) -> Objective:
    """Return the objective on what was sent; where sizes are compared as they were sent, what was not sent says something too."""
    if knowledge.mask is None:
        return objective
    by_size = knowledge.largest and knowledge.bound is None and compares_lengths(objective)
    return LargestSent(objective) if by_size else Sent(objective)


def _comparison(attack: Matching, match: Match, knowledge: Knowledge, reclip: bool, stepped: bool) -> Objective:
    """Return the objective that uses every fact, on the scale that L-BFGS and the priors of the attack need.

    Where priors are weighed against the mismatch its gain stays; but signs have no scale, and are read as of an update of length 10
    where the attack compares lengths. Directions and signs do not see a clip. Where rounding steps are told, which have a scale, the
    simulated update is clipped likewise, and counts as one of length 10.
    """
    power, alone = power_of(match.distance), not attack.priors
    distance, gain, scaled = match.distance, match.gain, LENGTH**power
    if knowledge.mask is not None and alone:
        gain = gain * scaled
    signs = _signs(knowledge)
    rounded = knowledge.bits is not None and not signs
    if signs:
        distance, gain = disagreement, LENGTH**2 if alone else scaled
    clipped = knowledge.bound is not None and distance in SCALED
    if clipped and not reclip and not rounded:
        clipped = False
        distance, gain = angle_per_tensor if knowledge.bound_each else angle, LENGTH**2
    objective: Objective = replace(match, distance=distance, gain=1.0)
    objective = Whitened(objective) if knowledge.sigma is not None and knowledge.sigma_each is not None else objective
    objective = Rounded(objective, PULL) if rounded else objective
    objective = Clipped(objective) if clipped else objective
    objective = _of_sent(objective, knowledge)
    factor: float | Gain = PerGradient(gain) if stepped and power_of(distance) else gain
    factor = AtLeast(factor, scaled) if rounded and alone else factor
    factor = ToLength(factor, LENGTH) if clipped else factor
    return objective if factor == 1.0 else Scaled(objective, factor)


def _signs(knowledge: Knowledge) -> bool:
    """Return whether signs were sent, by all trials or by none."""
    if knowledge.bits is None:
        return False
    signs = knowledge.bits == 1
    if bool(signs.any()) and not bool(signs.all()):
        raise InputError("Knowledge.bits is 1 (signs) for some trials only; attack those by themselves")
    return bool(signs.all())


def _in_units(attack: Matching, objective: Objective, knowledge: Knowledge) -> Matching:
    """Return the attack with its mismatch reported in units of what noise leaves, so that one threshold serves all noise levels.

    The unit is of what is reported and of the stop; the optimiser still minimises the distance itself (see `reported`). A told
    level of 0 is a level too: its unit is the threshold, as it is beside trials with noise. Priors are weighed against the mismatch as
    it is, so an attack that has some is not changed.
    """
    if knowledge.sigma is None or distance_of(objective) not in FLOORED or attack.priors:
        return replace(attack, objective=objective)
    threshold = 1.0 if attack.stop.threshold else 0.0  # 0 means that the attack never stops early, told of noise or not
    units = InNoiseUnits(objective, attack.stop.threshold)
    return replace(attack, objective=units, stop=replace(attack.stop, threshold=threshold))


def takes_steps(attack: Attack) -> bool:
    """Return whether local steps can take the place of the gradient that an attack simulates; not where it has steps of its own."""
    kinds = simulator_kinds(attack.simulate) if isinstance(attack, Matching) else set()
    return OneGradient in kinds and not kinds & {LocalSteps, OnTheLine}


def _with_steps(simulate: Simulator) -> Simulator:
    """Return the simulator with `LocalSteps` in the place of the `OneGradient` inside it."""
    if isinstance(simulate, OneGradient):
        return LocalSteps()
    inner = getattr(simulate, "inner", None)
    if inner is None:
        raise InputError(f"{type(simulate).__name__} holds no OneGradient whose place local steps could take")
    wrapper: Any = simulate
    replaced: Simulator = replace(wrapper, inner=_with_steps(inner))
    return replaced


# -- several rounds


def merge_rounds(observation: Observation, knowledge: Knowledge) -> tuple[Observation, Knowledge]:
    """Return several rounds of one batch at the same weights as one round with the mean update, and its smaller noise.

    For squared L2 the mean of the mismatches over R rounds is that of the mean update plus a constant,

        1/R sum_r ||g - u_r||^2 = ||g - mean u||^2 + 1/R sum_r ||u_r - mean u||^2,

    so nothing is lost and one round is simulated instead of R. Given back as they are: a single round, rounds whose weights
    differ, and updates known to be masked or rounded, whose rounds say more apart.
    """
    first, *later = observation.rounds
    shaped = knowledge.mask is not None or knowledge.bits is not None
    if shaped or not later or not all(_same(first, seen) for seen in later):
        return observation, knowledge
    sent = {name: torch.stack([seen.sent[name] for seen in observation.rounds]).mean(0) for name in first.sent}
    fewer = math.sqrt(len(observation.rounds))
    sigma = None if knowledge.sigma is None else knowledge.sigma / fewer
    levels = None if knowledge.sigma_each is None else scale(knowledge.sigma_each, 1 / fewer)
    known = replace(knowledge, sigma=sigma, sigma_each=levels)
    return replace(observation, rounds=(replace(first, sent=sent),)), known


def _same(one: Round, other: Round) -> bool:
    pairs = ((one.before, other.before), (one.buffers, other.buffers))
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


# -- dropout in the client's model


@dataclass(frozen=True, slots=True)
class _WithKey:
    """A network whose draws come from one key, whatever key it is called with."""

    apply: Callable[[Tree, Tree, Tensor, Tensor], tuple[Tensor, Tree]]
    key: Tensor

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        del key
        return self.apply(parameters, buffers, x, self.key)


@dataclass(frozen=True, slots=True)
class KnownDropout:
    """The inner simulator with the masks that the client's network drew; `key` is the client's, one per trial.

    For one gradient in one round: local steps and further rounds draw from keys of their own, which a simulator cannot
    tell apart.
    """

    key: Tensor
    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update under the known masks."""
        return self.inner(replace(model, apply=_WithKey(model.apply, self.key)), unknowns, seen, knowledge, clock)


@dataclass(frozen=True, slots=True)
class AveragedDropout:
    """The mean of the inner simulator over `draws` masks, the same ones in every iteration; `draws` times the cost.

    Without it every iteration draws one mask anew, and L-BFGS carries its memory from one function to another.
    """

    draws: int = MASKS
    inner: Simulator = field(default_factory=OneGradient)

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise InputError(f"AveragedDropout.draws must be at least 1, got {self.draws}")

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the mean update and the mean output."""
        still = torch.zeros_like(clock.iteration)
        key = random.fold(clock.key, "averaged_dropout")
        single = [
            self.inner(model, unknowns, seen, knowledge, Clock(still, random.fold(key, draw)))
            for draw in range(self.draws)
        ]
        total = single[0].update
        for one in single[1:]:
            total = add(total, one.update)
        output = torch.stack([one.output for one in single]).mean(0)
        return Simulated(scale(total, 1 / self.draws), output, single[0].targets)
