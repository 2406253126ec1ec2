"""The attacker who knows the client's transformation policy T and searches for x such that T(x) explains the update.

Known are the operations and their magnitudes (`Knowledge.policies`), not the random draws of each image: the signs, and for a
hybrid which policy. `KnownPolicy` tries all combinations as neighbouring lanes and keeps the smallest mismatch. If there are too
many (several images per client), `learn_policy` optimises the signs in [-1, 1] and a softmax over policies with the guess. Crops
and flips are unknown: they move the reconstruction and cannot be undone. The paper's enhanced attack learns only a translation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor

from leakscope.attacks.attack import SEEN, Matching
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.optimisers.rules import Interval
from leakscope.attacks.priors import GUESS
from leakscope.attacks.settings import AdamSettings, adam_attack
from leakscope.attacks.simulate import OneGradient, simulator_kinds
from leakscope.attacks.translate import ThroughMap
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.signature import settings_of
from leakscope.core.tree import Tree, take
from leakscope.core.types import Knowledge, Observation, Reconstruction, Round, Seeds
from leakscope.learning.transforms import SIGNED, PolicyFacts, transform

SIGNS, CHOICE = "signs", "choice"
LONGEST = 3
MOST_WAYS = 64


def mixture(pictures: Tensor, policies: Sequence[PolicyFacts], signs: Tensor, weights: Tensor) -> Tensor:
    """Return `sum_p w_p T_p(x)` for images in [0, 1] (N x C x H x W); signs N x 3, weights N x policies."""
    transformed = [transform(pictures, policy, signs) for policy in policies]
    share = weights.to(pictures.dtype).mT[..., None, None, None]
    return (torch.stack(transformed) * share).sum(0)


def _seen_by(
    knowledge: Knowledge, policies: Sequence[PolicyFacts], guess: Tensor, signs: Tensor, weights: Tensor
) -> Tensor:
    """Return the guess (network space) as the client's network would see it."""
    rank = len(knowledge.input_shape)
    return knowledge.scaling.scale(mixture(knowledge.scaling.unscale(guess, rank), policies, signs, weights), rank)


@dataclass(frozen=True, slots=True)
class ThroughPolicy:
    """The inner simulator on T(guess); draws that are None are unknowns, else `signs` (N x 3) and one-hot `weights` (N x policies)."""

    policies: tuple[PolicyFacts, ...]
    signs: Tensor | None = None
    weights: Tensor | None = None
    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update of the transformed guess."""
        signs, weights = _draws(unknowns, self.signs, self.weights)
        guess = _seen_by(knowledge, self.policies, unknowns[GUESS], signs, weights)
        return self.inner(model, {**unknowns, GUESS: guess}, seen, knowledge, clock)


def _draws(unknowns: Tree, signs: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    return (
        unknowns[SIGNS] if signs is None else signs,
        torch.softmax(unknowns[CHOICE], dim=-1) if weights is None else weights,
    )


@dataclass(frozen=True, slots=True)
class AddTransformed:
    """Add T(guess) to the final unknowns of all trials."""

    policies: tuple[PolicyFacts, ...]
    signs: Tensor | None = None
    weights: Tensor | None = None

    def __call__(self, unknowns: Tree, knowledge: Knowledge) -> Tree:
        """Return the unknowns with the guess as the client's network saw it."""
        signs, weights = (each.flatten(0, 1).cpu() for each in _draws(unknowns, self.signs, self.weights))
        transformed = _seen_by(knowledge, self.policies, unknowns[GUESS].flatten(0, 1), signs, weights)
        return {**unknowns, SEEN: transformed.reshape(unknowns[GUESS].shape)}


@dataclass(frozen=True, slots=True)
class Zeros:
    """The start of an unknown with `width` numbers per image: 0."""

    width: int

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return N x width zeros."""
        return torch.zeros((knowledge.samples, self.width), device=key.device)


def learn_policy(attack: Matching, knowledge: Knowledge) -> Matching:
    """Return the attack through the known policies, with signs and choice of policy learned; unchanged if it has a map already."""
    policies = knowledge.policies
    if not policies or simulator_kinds(attack.simulate) & {ThroughMap, ThroughPolicy}:
        return attack
    if attack.finish is not None:
        raise InputError(
            f"attack {attack.name!r} finishes its guess in its own way; give one that does not, such as ig"
        )
    schedule = attack.rules[GUESS].schedule if GUESS in attack.rules else None
    return replace(
        attack,
        simulate=ThroughPolicy(policies, inner=attack.simulate),
        extras={**attack.extras, SIGNS: Zeros(LONGEST), CHOICE: Zeros(len(policies))},
        rules={
            **attack.rules,
            SIGNS: Rule(schedule=schedule, project=Interval(-1.0, 1.0)),
            CHOICE: Rule(schedule=schedule),
        },
        finish=AddTransformed(policies),
    )


def ways(policies: Sequence[PolicyFacts], samples: int) -> tuple[Tensor, Tensor] | None:
    """Return every combination of a client's draws: signs (ways x N x 3), weights (ways x N x policies); None above 64.

    >>> signs, weights = ways([(("translate_x", 0.4), ("invert", 0.0))], 1)
    >>> signs[:, 0].tolist()
    [[-1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    for_one: list[tuple[tuple[float, ...], int]] = []
    for number, policy in enumerate(policies):
        options = [(-1.0, 1.0) if kind in SIGNED and magnitude else (1.0,) for kind, magnitude in policy]
        spare = ((1.0,),) * (LONGEST - len(policy))
        for_one += [(signs, number) for signs in itertools.product(*options, *spare)]
    if len(for_one) ** samples > MOST_WAYS:
        return None
    together = list(itertools.product(for_one, repeat=samples))
    signs = torch.tensor([[way[0] for way in each] for each in together])
    weights = torch.zeros(len(together), samples, len(policies))
    for row, each in enumerate(together):
        for column, (_, number) in enumerate(each):
            weights[row, column, number] = 1
    return signs, weights


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """An attack through the known policies: tries every combination of draws and keeps the smallest mismatch."""

    base: Matching
    name: str = "ig_policy"

    @property
    def restarts(self) -> int:
        """Return the number of starts of a trial for each combination of draws."""
        return self.base.restarts

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the reconstruction of every trial."""
        if knowledge.policies is None:
            raise InputError(
                f"{self.name} needs Knowledge.policies: add the client's defences by knowledge_of_defences"
            )
        if len(observation.rounds) > 1:
            raise InputError(f"{self.name} supports one round: a client draws new transformations in every round")
        if not knowledge.policies:
            return self.base.run(model, observation, knowledge, seeds, execution)
        tried = ways(knowledge.policies, knowledge.samples)
        if tried is None:
            return learn_policy(self.base, knowledge).run(model, observation, knowledge, seeds, execution)
        signs, weights = tried
        each, total = len(signs), len(seeds)
        lanes = torch.arange(total).repeat_interleave(each)
        draws = signs.repeat(total, 1, 1), weights.repeat(total, 1, 1)
        base = take(self.base, lanes)
        attack = replace(
            base,
            simulate=ThroughPolicy(knowledge.policies, *draws, inner=base.simulate),
            finish=AddTransformed(knowledge.policies, *draws),
        )
        seen, known = take((observation, knowledge), lanes)
        result = attack.run(model, seen, known, [seeds[int(lane)] for lane in lanes], execution)
        mismatch = torch.nan_to_num(result.mismatch, nan=float("inf")).reshape(total, each)
        return take(result, torch.arange(total) * each + mismatch.argmin(1))


@settings_of(adam_attack, without=("decay", "threshold"))
def ig_policy(**settings: Unpack[AdamSettings]) -> KnownPolicy:
    """`ig` by an attacker who knows the client's policy and optimises through it; needs `Knowledge.policies`."""
    return KnownPolicy(adam_attack("ig_policy", **settings))
