"""SME and its IG baseline: matching the direction of a weight update `w0 - wT` by one gradient.

Surrogate model extension (Zhu, Yao and Blaschko 2023, arXiv:2306.00127, Eq. 5):

    min over x and a in [0, 1] of   1 - cos(w0 - wT, grad l(w_hat, x)) + lambda TV(x),   w_hat = (1 - a) w0 + a wT

Their Eq. 5 prints `a w0 + (1 - a) wT`; their Table 1 and their runs use the form above, in which a = 0 is w0. IG is the same
with the gradient taken at w0. Neither needs epochs, batch size or rate: the cosine is blind to the length of an update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import cosine
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import Adam, Rule, Steps
from leakscope.attacks.optimisers.rules import Interval, into_box
from leakscope.attacks.priors import GUESS, TotalVariation
from leakscope.attacks.simulate import ALPHA, OneGradient, OnTheLine
from leakscope.attacks.starts import Normal, Start
from leakscope.attacks.view import Objective
from leakscope.core.errors import InputError
from leakscope.core.types import Knowledge


@dataclass(frozen=True, slots=True)
class Constant:
    """The start of a further unknown: one number, the same for every trial."""

    value: float

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the number."""
        del knowledge
        return torch.full((), self.value, dtype=torch.float64, device=key.device)


def milestones(iterations: int) -> tuple[int, int, int]:
    """Return the iterations after which the authors multiply both rates by 0.1: 374, 624 and 875 of 1000.

    >>> milestones(1000)
    (374, 624, 875)
    """
    # 1000 // 1.6 is 624: 1.6 is stored as a little more than that
    return int(iterations // 2.667), int(iterations // 1.6), int(iterations // 1.142)


def sme(
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    objective: Objective = Match(cosine),  # noqa: B008  frozen
    rate: float = 1.0,
    alpha: float = 0.5,
    alpha_rate: float = 1e-3,
    alpha_every: int = 1,
    tv: float = 0.01,
    decay: bool = True,
    labels: str = "auto",
    iterations: int = 1000,
    threshold: float = 0.0,
    restarts: int = 1,
) -> Matching:
    """Surrogate model extension (Zhu et al. 2023): IG at a learned point on the line from the weights before to those after.

    The surrogate starts at `alpha` (0 = before, 1 = after), moves at `alpha_rate` and stays in [0, 1]; `alpha_rate` 0 holds it.
    `decay` multiplies both rates by 0.1 after 3/8, 5/8 and 7/8 of the iterations. For ViT the authors use rate 0.1, no decay.
    `alpha_every` k moves alpha in every k-th iteration alone, k times as far; the others cost what ig_update's do. The paper has 1.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"sme(alpha=...) must be in [0, 1], got {alpha}")
    if not alpha_rate >= 0:
        raise InputError(f"sme(alpha_rate=...) must not be below 0, got {alpha_rate}")
    if alpha_every < 1:
        raise InputError(f"sme(alpha_every=...) must be at least 1, got {alpha_every}")
    _check_tv("sme", tv)
    schedule = Steps(milestones(iterations)) if decay else None
    return Matching(
        "sme",
        simulate=OnTheLine(OneGradient()),
        objective=objective,
        priors=(TotalVariation(tv, scale=0.5),) if tv else (),
        start=start,
        labels=labels,
        optimiser=Adam(rate),
        rules={
            GUESS: Rule(schedule=schedule, project=into_box),
            ALPHA: Rule(
                rate=alpha_rate * alpha_every / rate,
                schedule=schedule,
                project=Interval(0.0, 1.0),
                every=alpha_every,
            ),
        },
        extras={ALPHA: Constant(alpha)},
        stop=Stop(iterations=iterations, threshold=threshold),
        restarts=restarts,
    )


def ig_update(
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    objective: Objective = Match(cosine),  # noqa: B008  frozen
    rate: float = 1.0,
    tv: float = 0.01,
    decay: bool = True,
    labels: str = "auto",
    iterations: int = 1000,
    threshold: float = 0.0,
    restarts: int = 1,
) -> Matching:
    """SME's baseline: IG on `before - after` with SME's settings (no signed gradients); `sme` with alpha held at 0.

    `ig` with its own settings takes weight updates as well.
    """
    _check_tv("ig_update", tv)
    return Matching(
        "ig_update",
        objective=objective,
        priors=(TotalVariation(tv, scale=0.5),) if tv else (),
        start=start,
        labels=labels,
        optimiser=Adam(rate),
        rules={GUESS: Rule(schedule=Steps(milestones(iterations)) if decay else None, project=into_box)},
        stop=Stop(iterations=iterations, threshold=threshold),
        restarts=restarts,
    )


def _check_tv(recipe: str, tv: float) -> None:
    if not tv >= 0:
        raise InputError(f"{recipe}(tv=...) must not be below 0, got {tv}")
