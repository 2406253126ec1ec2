"""Settings shared by published attacks, by optimiser: L-BFGS or Adam; recipes copy them into their signature with `settings_of`."""

from __future__ import annotations

from typing import TypedDict

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import cosine, squared_l2
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import LBFGS, Adam, Optimiser, Rule, Steps
from leakscope.attacks.optimisers.rules import into_box
from leakscope.attacks.priors import GUESS, TotalVariation
from leakscope.attacks.starts import Normal, Patterned, Start
from leakscope.attacks.view import Objective
from leakscope.core.errors import InputError


class Settings(TypedDict, total=False):
    """Settings of every recipe."""

    start: Start
    objective: Objective
    labels: str
    iterations: int
    threshold: float
    restarts: int


class LBFGSSettings(Settings, total=False):
    """The settings of `lbfgs_attack`."""

    optimiser: Optimiser


class AdamSettings(Settings, total=False):
    """The settings of `adam_attack`."""

    rate: float
    tv: float
    signed: bool
    decay: bool


def lbfgs_attack(
    name: str,
    *,
    start: Start = Patterned(),  # noqa: B008  frozen
    objective: Objective = Match(squared_l2),  # noqa: B008  frozen
    optimiser: Optimiser = LBFGS(),  # noqa: B008  frozen
    labels: str = "auto",
    iterations: int = 300,
    threshold: float = 1e-4,
    restarts: int = 1,
) -> Matching:
    """Return the attack that minimises the mismatch alone, down to a threshold."""
    stop = Stop(iterations=iterations, threshold=threshold)
    return Matching(
        name, start=start, objective=objective, labels=labels, optimiser=optimiser, stop=stop, restarts=restarts
    )


def adam_attack(
    name: str,
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    objective: Objective = Match(cosine),  # noqa: B008  frozen
    rate: float = 0.1,
    tv: float = 1e-4,
    signed: bool = True,
    decay: bool = True,
    labels: str = "auto",
    iterations: int = 4800,
    threshold: float = 0.0,
    restarts: int = 1,
) -> Matching:
    """Return the attack that minimises mismatch and total variation in the valid box; `decay` lowers the rate at `milestones`."""
    if not tv >= 0:
        raise InputError(f"{name}(tv=...) must not be below 0, got {tv}")
    schedule = Steps(milestones(iterations)) if decay else None
    return Matching(
        name,
        start=start,
        objective=objective,
        priors=(TotalVariation(tv),) if tv else (),
        labels=labels,
        optimiser=Adam(rate),
        rules={GUESS: Rule(sign=signed, schedule=schedule, project=into_box)},
        stop=Stop(iterations=iterations, threshold=threshold),
        restarts=restarts,
    )


def milestones(iterations: int) -> tuple[int, int, int]:
    """Return the iterations after which IG and SME multiply their rates by 0.1: 374, 624 and 875 of 1000.

    >>> milestones(1000)
    (374, 624, 875)
    """
    # 1000 // 1.6 is 624: the float 1.6 is slightly above 1.6
    return int(iterations // 2.667), int(iterations // 1.6), int(iterations // 1.142)
