"""Attacks on deep vision networks: `modern` (breaching's settings of IG) and `gradinversion`."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from leakscope.attacks.attack import Matching
from leakscope.attacks.batch_statistics import BatchStatistics
from leakscope.attacks.distances import l2_per_tensor
from leakscope.attacks.group import GROUP, EachMember, GroupConsistency, InGroup, Others, mean_member
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.optimisers.rules import Cosine, SoftSign, into_box
from leakscope.attacks.priors import GUESS, Langevin, Norm, OpponentVariation, TotalVariation
from leakscope.attacks.settings import AdamSettings, adam_attack
from leakscope.attacks.starts import Patterned
from leakscope.attacks.view import Prior
from leakscope.attacks.watched import HeadFeatures, Watched
from leakscope.core.errors import InputError
from leakscope.core.signature import settings_of

WARMUP = 50


def with_statistics(attack: Matching, weight: float) -> Matching:
    """Return the attack with the prior on batch norm's statistics; unchanged at weight 0."""
    if not weight >= 0:
        raise InputError(f"{attack.name}(bn=...) must not be below 0, got {weight}")
    if not weight:
        return attack
    watched = attack.simulate if isinstance(attack.simulate, Watched) else Watched(attack.simulate)
    return replace(attack, simulate=watched, priors=(*attack.priors, BatchStatistics(weight)))


@settings_of(adam_attack, without=("signed", "decay"), start=Patterned(4), tv=0.1, iterations=24_000)
def modern(*, features: float = 0.1, bn: float = 0.0, **settings: Unpack[AdamSettings]) -> Matching:
    """IG with later settings (breaching): soft sign, cosine decay, opponent total variation, features inferred from the head.

    `features` weighs the prior on the head's input, `bn` the one on batch norm's statistics.

    Equation: `min over x in the box of 1 - cos(grad l(w, x, y), g) + tv TV(x, opponents) + features |f(x) - dL/dW_y / dL/db_y|^2`.
    Reference: Geiping and Fowl 2022, breaching (software), attack `modern`; Geiping et al. 2020, arXiv:2003.14053.
    Works when: as ig; the network ends in a dense layer with a bias.
    Costs: 24000 evaluations with a second derivative and one more forward pass.
    """
    attack = adam_attack("modern", **settings)
    last = attack.stop.iterations
    variation = tuple(OpponentVariation(each.weight) for each in attack.priors if isinstance(each, TotalVariation))
    priors: tuple[Prior, ...] = (*variation, *((HeadFeatures(features),) if features else ()))
    rule = Rule(sign=SoftSign(last), schedule=Cosine(last, WARMUP), project=into_box)
    simulate = Watched(attack.simulate) if features else attack.simulate
    return with_statistics(replace(attack, priors=priors, rules={GUESS: rule}, simulate=simulate), bn)


@settings_of(adam_attack, without=("signed", "decay"), objective=Match(l2_per_tensor, gain=1e-3), iterations=20_000)
def gradinversion(
    *,
    bn: float = 0.1,
    l2: float = 1e-6,
    group: int = 4,
    consistency: float = 0.01,
    noise: float = 0.01,
    **settings: Unpack[AdamSettings],
) -> Matching:
    """GradInversion (Yin et al. 2021): gradients by layer, TV, L2, statistics of batch norm, a group of guesses, Langevin noise.

    `bn` weighs the statistics: of the client's batch if it sends its buffers, else the running ones. `group` guesses with weight
    `consistency` are pulled to their mean, which is the result; with `group=1` there is none. `noise` is in units of the rate.

    Equation: `min over x of sum_l |g_l(x) - g_l| / 1000 + tv TV(x) + l2 |x|^2 + bn (|mean - m| + |var - v|) + consistency |x - E x|^2`.
    Reference: Yin et al. 2021, See through gradients, arXiv:2104.07586, Eq. 1 to 11; means for sums in TV, L2 and the group.
    Works when: as ig; most with batch norm whose buffers the client sends.
    Costs: 20000 steps, each `group` evaluations with a second derivative and one more forward pass.
    """
    attack = adam_attack("gradinversion", **settings)
    if group < 1:
        raise InputError(f"gradinversion(group=...) must be at least 1, got {group}")
    last = attack.stop.iterations
    rule = Rule(schedule=Cosine(last, WARMUP), project=into_box)
    langevin = Langevin(noise * settings.get("rate", 0.1), Cosine(last, WARMUP))
    attack = replace(attack, priors=(*attack.priors, Norm(l2), *((langevin,) if noise else ())), rules={GUESS: rule})
    attack = with_statistics(attack, bn)
    if group == 1:
        return attack
    return replace(
        attack,
        simulate=InGroup(attack.simulate),
        objective=EachMember(attack.objective),
        priors=(*map(EachMember, attack.priors), GroupConsistency(consistency)),
        extras={GROUP: Others(group - 1, attack.start)},
        rules={GUESS: rule, GROUP: rule},
        finish=mean_member,
    )
