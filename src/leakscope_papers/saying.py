"""Which measures of a cell mean something: an attack without a threshold cannot converge, a cap is not felt by the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leakscope_papers.comparing import CONVERGENCE, NO_THRESHOLD
from leakscope_papers.measures import NONE, Value
from leakscope_papers.naming import setting_at

STEPS = ("iterations_mean", "iterations_min", "iterations_max", "iterations_variance")
OF_SUCCESSES = frozenset({CONVERGENCE, *STEPS, "ssim", "mse"})


def within_cap(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the measures that follow a cap on iterations: those of successes. The picture at the cap was not kept."""
    return {name: value for name, value in values.items() if name in OF_SUCCESSES}


def meaningful(values: Mapping[str, Value], settings: Mapping[str, Any]) -> dict[str, Value]:
    """Return the measures of a cell; convergence and its iterations have no number where the attack has no threshold.

    IG is such an attack: it runs all its steps. Its pictures are those of everything attacked.
    """
    if setting_at(settings, "attack.threshold") != 0:
        return dict(values)
    made = {**values, **{name: Value(NONE, NO_THRESHOLD) for name in (CONVERGENCE, *STEPS) if name in values}}
    for name in ("ssim", "mse"):
        if name in made and made[name].there:
            made[name] = replace(made[name], over="everything attacked")
    return made
