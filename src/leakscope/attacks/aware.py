"""The informed attacker: the same attack, using facts about what the defence did to the update.

`aware` reads these facts from Knowledge and changes only what is compared; start, optimiser, priors and stop stay the same.

| known | the client | the attack |
|---|---|---|
| `mask` | sent some coordinates (random mask, compression) | compares only those, round by round |
| `mask`, `largest` | sent the largest (sparsify alone) | compares those; the others must not exceed the smallest of them |
| `bound` | clipped the norm (of each tensor: `bound_each`) | compares directions, or clips the simulated update too (`reclip`) |
| `bits` = 1 | sent signs | counts wrong signs |
| `bits` > 1 | rounded | ignores differences within one rounding step, except for a tenth of the weight |
| `sigma` | added noise | stops where noise alone explains the rest |
| `sigma_each` | added noise of a different level to each tensor | measures each tensor's differences in units of its noise |
| `local` | trained for several steps | simulates them (`simulate=True`) |
| `policies` | transformed its images | optimises through the transformations and learns the random draws |
| `private_head` | trained a private head beside the public one | learns the private loss's gradient at the features |

DLFA uses mask, clip and rounding in the same way; it refuses signs and ignores noise. `analytic`, `linear_system` and the label
rules read Knowledge themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.defended import Clipped, LargestSent, Rounded, Sent, Whitened
from leakscope.attacks.distances import (
    FLOORED,
    PER_TENSOR,
    SCALED,
    Distance,
    angle,
    angle_per_tensor,
    disagreement,
    power_of,
)
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

# Directions differ by only 1e-3 at a random start and L-BFGS stops at absolute tolerances, so values are scaled to updates of
# length 10, that of LeNet's gradients (4 on digits, 22 on Fashion-MNIST).
LENGTH = 10.0
MASKS = 8  # dropout masks that are averaged
PULL = 0.1  # weight of the distance to the rounded update: with less, dense networks stop at wrong images that few bits allow


def aware(attack: Matching, knowledge: Knowledge, *, reclip: bool = False, simulate: bool = False) -> Matching:
    """Return the attack changed to use what is known about defences; the same attack if nothing is known.

    `reclip` clips the simulated update instead of comparing directions (always if `bits` is known too). It also uses that an
    unclipped update was short, but assumes that the mask came before the clip. `simulate` replaces one gradient by the client's
    local steps: exact, and its cost grows with the number of steps. An objective that already uses such facts is left unchanged.
    The `Stop` threshold keeps its value but changes its unit: see docs/explanation/aware.md.
    """
    attack = learn_pull(learn_policy(attack, knowledge), knowledge)
    unsimulated = knowledge.local is not None and not simulator_kinds(attack.simulate) & {LocalSteps, OnTheLine}
    if stepped := simulate and unsimulated:
        attack = replace(attack, simulate=_with_steps(attack.simulate))
    defended = any(fact is not None for fact in (knowledge.mask, knowledge.bound, knowledge.bits, knowledge.sigma))
    uses_facts = bool(DEFENCE_FACTS & (facts_needed(attack.objective) or frozenset()))
    if uses_facts or not (defended or stepped):
        return attack
    if isinstance(attack.objective, Match):
        return _in_units(attack, _comparison(attack, attack.objective, knowledge, reclip, stepped), knowledge)
    return _undone_inside(attack, knowledge) if defended else attack


def _undone_inside(attack: Matching, knowledge: Knowledge) -> Matching:
    """Return an attack with another objective than Match (DLFA, public head): facts wrap its comparison; signs are refused."""
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
    """Return the objective on the sent coordinates; if the largest were sent and sizes are compared, the others are bounded too."""
    if knowledge.mask is None:
        return objective
    by_size = knowledge.largest and knowledge.bound is None and compares_lengths(objective)
    return LargestSent(objective) if by_size else Sent(objective)


def _comparison(attack: Matching, match: Match, knowledge: Knowledge, reclip: bool, stepped: bool) -> Objective:
    """Return the objective that uses every fact, scaled for the absolute tolerances of L-BFGS and for the attack's priors.

    With priors the gain is kept, except for signs: they have no scale and count as an update of length 10. Angles and signs are
    invariant to clipping the whole update; clipping each tensor turns it, so the simulated tensors are clipped too, or
    compared one by one. Rounding steps have a scale: the simulated update is then clipped and counts as one of length 10.
    """
    power, alone = power_of(match.distance), not attack.priors
    gain, scaled = match.gain, LENGTH**power
    distance: Distance = match.distance
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
    turned = knowledge.bound is not None and knowledge.bound_each and distance in PER_TENSOR
    if turned and (knowledge.mask is not None or knowledge.local is not None):
        distance = PER_TENSOR[distance]  # the length that was clipped is not simulated
    objective: Objective = replace(match, distance=distance, gain=1.0)
    objective = Whitened(objective) if knowledge.sigma is not None and knowledge.sigma_each is not None else objective
    objective = Rounded(objective, PULL) if rounded else objective
    objective = Clipped(objective) if clipped or (turned and distance in PER_TENSOR) else objective
    objective = _of_sent(objective, knowledge)
    factor: float | Gain = PerGradient(gain) if stepped and power_of(distance) else gain
    factor = AtLeast(factor, scaled) if rounded and alone else factor
    factor = ToLength(factor, LENGTH) if clipped else factor
    return objective if factor == 1.0 else Scaled(objective, factor)


def _signs(knowledge: Knowledge) -> bool:
    """Return whether all trials sent signs; raise if only some did."""
    if knowledge.bits is None:
        return False
    signs = knowledge.bits == 1
    if bool(signs.any()) and not bool(signs.all()):
        raise InputError("Knowledge.bits is 1 (signs) for some trials only; attack those by themselves")
    return bool(signs.all())


def _in_units(attack: Matching, objective: Objective, knowledge: Knowledge) -> Matching:
    """Return the attack with its mismatch reported in units of the noise floor, so that one threshold serves all noise levels.

    Only reporting and stopping use the unit; the optimiser still minimises the distance (see `reported`). With sigma 0 the unit
    is the threshold. Attacks with priors are not changed: their priors are weighted against the raw mismatch.
    """
    if knowledge.sigma is None or distance_of(objective) not in FLOORED or attack.priors:
        return replace(attack, objective=objective)
    threshold = 1.0 if attack.stop.threshold else 0.0  # 0: never stop early, with or without noise
    units = InNoiseUnits(objective, attack.stop.threshold)
    return replace(attack, objective=units, stop=replace(attack.stop, threshold=threshold))


def takes_steps(attack: Attack) -> bool:
    """Return whether local steps can replace the one gradient that an attack simulates."""
    kinds = simulator_kinds(attack.simulate) if isinstance(attack, Matching) else set()
    return OneGradient in kinds and not kinds & {LocalSteps, OnTheLine}


def _with_steps(simulate: Simulator) -> Simulator:
    """Return the simulator with the `OneGradient` inside it replaced by `LocalSteps`."""
    if isinstance(simulate, OneGradient):
        return LocalSteps()
    inner = getattr(simulate, "inner", None)
    if inner is None:
        raise InputError(f"{type(simulate).__name__} contains no OneGradient that local steps could replace")
    wrapper: Simulator = simulate
    replaced: Simulator = replace(wrapper, inner=_with_steps(inner))  # type: ignore[type-var]
    return replaced


# -- several rounds


def merge_rounds(observation: Observation, knowledge: Knowledge) -> tuple[Observation, Knowledge]:
    """Return several rounds of one batch at the same weights as one round with the mean update, and its smaller noise.

    For squared L2 the mean of the mismatches over R rounds is that of the mean update plus a constant,

        1/R sum_r ||g - u_r||^2 = ||g - mean u||^2 + 1/R sum_r ||u_r - mean u||^2,

    so nothing is lost and one round is simulated instead of R. Unchanged: a single round, rounds at different weights, and masked
    or rounded updates, which carry more information separately.
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
    """A network that always draws from one given key."""

    apply: Callable[[Tree, Tree, Tensor, Tensor], tuple[Tensor, Tree]]
    key: Tensor

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        del key
        return self.apply(parameters, buffers, x, self.key)


@dataclass(frozen=True, slots=True)
class KnownDropout:
    """The inner simulator with the client's dropout masks, from its `key` (one per trial); only for one gradient in one round."""

    key: Tensor
    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update under the known masks."""
        return self.inner(replace(model, apply=_WithKey(model.apply, self.key)), unknowns, seen, knowledge, clock)


@dataclass(frozen=True, slots=True)
class AveragedDropout:
    """The mean of the inner simulator over `draws` dropout masks, the same in every iteration; `draws` times the cost.

    Without it every iteration draws a new mask, and the curvature memory of L-BFGS mixes different functions.
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
        return replace(single[0], update=scale(total, 1 / self.draws), output=output)
