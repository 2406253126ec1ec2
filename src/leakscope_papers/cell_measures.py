"""The measures and curves of a scenario's cell that are meaningful for its attack.

The similarity loss is 1 - cos: the mismatch of attacks that match by it, or what others (DLFA) measured at their end. Curves are
recovery over the threshold (Mixing's table 1, which names none), and the distribution of changes at the end of the traces
(Mixing's figures 1 and 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.attacks.distances import cosine
from leakscope.attacks.objectives import Match
from leakscope.scenario.components import KINDS
from leakscope_papers.comparing import CONVERGENCE, NO_THRESHOLD
from leakscope_papers.measures import NONE, Value, gradient_ratios, image_ratios, measure
from leakscope_papers.naming import setting_at
from leakscope_papers.programs.rows import Curve
from leakscope_papers.scored import Scored

STEPS = ("iterations_mean", "iterations_min", "iterations_max", "iterations_variance")
OF_SUCCESSES = frozenset({CONVERGENCE, *STEPS, "ssim", "mse"})
SIMILARITY_MEASURES = ("similarity_loss", "similarity_loss_error")
CHANGES = "change over value at the end"
IMAGE_CHANGES = "change over value of the image MSE at the end"
RECOVERED = "recovered by threshold"
DECADES, A_DECADE = (-8, 1), 4  # from 1e-8 to 10, four points a decade
THRESHOLDS = (-6, 0)  # of an MSE, from 1e-6 to 1


def within_cap(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the measures that depend on a cap on iterations: those of successes. Images at the cap are not stored."""
    return {name: value for name, value in values.items() if name in OF_SUCCESSES}


def meaningful(values: Mapping[str, Value], settings: Mapping[str, object]) -> dict[str, Value]:
    """Return the measures of a cell, without convergence and iterations if the attack has no threshold (IG runs all its steps)."""
    if setting_at(settings, "attack.threshold") != 0:
        return dict(values)
    changed = {**values, **{name: Value(NONE, NO_THRESHOLD) for name in (CONVERGENCE, *STEPS) if name in values}}
    for name in ("ssim", "mse"):
        if name in changed and changed[name].has_number:
            changed[name] = replace(changed[name], over="everything attacked")
    return changed


def measure_with_similarity(cell: Scored, settings: Mapping[str, object]) -> dict[str, Value]:
    """Return the measures of a cell, with the similarity loss only if its attack has one."""
    if matches_by_cosine(settings):
        return measure(replace(cell, similarity=cell.mismatch))
    values = measure(cell)
    return (
        values
        if values[SIMILARITY_MEASURES[0]].has_number
        else {name: value for name, value in values.items() if name not in SIMILARITY_MEASURES}
    )


def matches_by_cosine(settings: Mapping[str, object]) -> bool:
    """Return whether the attack of a cell compares directions; settings of an older run may contain removed fields."""
    stored = setting_at(settings, "attack.objective")
    if isinstance(stored, Mapping):
        return stored.get("name") == "match" and stored.get("distance") == "cosine"
    objective = getattr(KINDS["attack"].build({"name": setting_at(settings, "attack.name")}), "objective", None)
    return isinstance(objective, Match) and objective.distance is cosine


def cell_curves(cell: Scored) -> dict[str, Curve]:
    """Return the curves of a cell, by name."""
    return recovery_curves(cell) | trace_curves(cell)


def recovery_curves(cell: Scored) -> dict[str, Curve]:
    """Return for each attack the share of its samples whose log10 MSE is at most x; NaN counts as not recovered."""
    whole = cell.scored.any(1)
    if not bool(whole.any()):
        return {}
    x = _places(THRESHOLDS)
    hit = (cell.mse[whole, :, None].double() <= 10**x) & cell.scored[whole, :, None]
    shares = hit.double().sum(1) / cell.scored[whole].sum(1, keepdim=True)
    return {RECOVERED: Curve(tuple(x.tolist()), tuple(tuple(row) for row in shares.tolist()))}


def trace_curves(cell: Scored) -> dict[str, Curve]:
    """Return for each attack the share of its last points whose log10(change / value) is at most x, for gradient and image.

    No change counts as below every x. Attacks without a point (too short, or entirely below the floor) are left out.
    """
    both = {CHANGES: gradient_ratios(cell), IMAGE_CHANGES: image_ratios(cell)}
    return {name: _distribution(ratios) for name, ratios in both.items() if ratios is not None}


def _distribution(ratios: Tensor) -> Curve:
    ratios = ratios[(~ratios.isnan()).any(1)]
    x = _places(DECADES)
    under = (ratios[:, :, None] <= x).double().sum(1) / (~ratios.isnan()).sum(1, keepdim=True)
    return Curve(tuple(x.tolist()), tuple(tuple(row) for row in under.tolist()))


def _places(decades: tuple[int, int]) -> Tensor:
    low, high = decades
    return torch.linspace(low, high, (high - low) * A_DECADE + 1, dtype=torch.float64)
