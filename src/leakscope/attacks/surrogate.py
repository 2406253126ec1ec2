"""SME and its IG baseline: match the direction of a weight update `w0 - wT` by one gradient.

Surrogate model extension (Zhu, Yao and Blaschko 2023, arXiv:2306.00127, Eq. 5):

    min over x and a in [0, 1] of   1 - cos(w0 - wT, grad l(w_hat, x)) + lambda TV(x),   w_hat = (1 - a) w0 + a wT

Their Eq. 5 prints `a w0 + (1 - a) wT`; their Table 1 and their runs use the form above, in which a = 0 is w0. IG takes the
gradient at w0. Neither needs epochs, batch size or rate: the cosine does not depend on the length of an update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.optimisers.rules import Interval
from leakscope.attacks.priors import GUESS, TotalVariation
from leakscope.attacks.settings import AdamSettings, adam_attack
from leakscope.attacks.simulate import ALPHA, OneGradient, OnTheLine
from leakscope.core.errors import InputError
from leakscope.core.signature import settings_of
from leakscope.core.types import Knowledge

AUTHORS: AdamSettings = {"rate": 1.0, "tv": 0.01, "signed": False, "iterations": 1000}


@dataclass(frozen=True, slots=True)
class Constant:
    """The start of an extra unknown: one number, the same for every trial."""

    value: float

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the number."""
        del knowledge
        return torch.full((), self.value, dtype=torch.float64, device=key.device)


@settings_of(adam_attack, without=("signed",), **AUTHORS)
def ig_update(**settings: Unpack[AdamSettings]) -> Matching:
    """SME's baseline: IG on `before - after` with SME's settings (no signed gradients); `sme` with alpha held at 0."""
    return _on_update("ig_update", settings)


@settings_of(adam_attack, without=("signed",), **AUTHORS)
def sme(
    *, alpha: float = 0.5, alpha_rate: float = 1e-3, alpha_every: int = 1, **settings: Unpack[AdamSettings]
) -> Matching:
    """Surrogate model extension (Zhu et al. 2023): IG at a learned point on the line from the weights before to those after.

    The surrogate starts at `alpha` (0 = before, 1 = after), moves at `alpha_rate` (0 holds it) and stays in [0, 1]. `decay`
    multiplies both rates by 0.1 after 3/8, 5/8 and 7/8 of the iterations; for ViT the authors use rate 0.1 without it.
    `alpha_every` k (paper: 1) moves alpha only in every k-th iteration, k times as far; the others cost as little as in
    ig_update.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"sme(alpha=...) must be in [0, 1], got {alpha}")
    if not alpha_rate >= 0:
        raise InputError(f"sme(alpha_rate=...) must not be below 0, got {alpha_rate}")
    if alpha_every < 1:
        raise InputError(f"sme(alpha_every=...) must be at least 1, got {alpha_every}")
    attack = _on_update("sme", settings)
    guess = attack.rules[GUESS]
    rate = alpha_rate * alpha_every / settings["rate"]
    moving = replace(guess, rate=rate, project=Interval(0.0, 1.0), every=alpha_every)
    return replace(
        attack, simulate=OnTheLine(OneGradient()), rules={GUESS: guess, ALPHA: moving}, extras={ALPHA: Constant(alpha)}
    )


def _on_update(name: str, settings: AdamSettings) -> Matching:
    """Return IG with the authors' total variation, half of IG's."""
    tv = settings["tv"]
    return replace(adam_attack(name, **settings), priors=(TotalVariation(tv, scale=0.5),) if tv else ())
