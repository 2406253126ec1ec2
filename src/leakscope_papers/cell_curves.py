"""What the trials of a cell show as a curve: recovery over the threshold (Mixing's table 1, which names none), and from their
traces the changes at the end of the attacks, as a distribution (Mixing's figures 1 and 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope_papers.measures import gradient_ratios, image_ratios
from leakscope_papers.programs.rows import Curve
from leakscope_papers.scored import Scored

CHANGES = "change over value at the end"
IMAGE_CHANGES = "change over value of the image MSE at the end"
RECOVERED = "recovered by threshold"
DECADES, A_DECADE = (-8, 1), 4  # from 1e-8 to 10, four places a decade
THRESHOLDS = (-6, 0)  # of an MSE, from 1e-6 to 1


def cell_curves(cell: Scored) -> dict[str, Curve]:
    """Return the curves of a cell, by name."""
    return recovery_curves(cell) | trace_curves(cell)


def recovery_curves(cell: Scored) -> dict[str, Curve]:
    """Return for each attack the share of its samples whose log10 of the MSE is at most x; NaN is no recovery."""
    whole = cell.scored.any(1)
    if not bool(whole.any()):
        return {}
    x = _places(THRESHOLDS)
    hit = (cell.mse[whole, :, None].double() <= 10**x) & cell.scored[whole, :, None]
    shares = hit.double().sum(1) / cell.scored[whole].sum(1, keepdim=True)
    return {RECOVERED: Curve(tuple(x.tolist()), tuple(tuple(row) for row in shares.tolist()))}


def trace_curves(cell: Scored) -> dict[str, Curve]:
    """Return for each attack the share of its last points whose log10 of change over value is at most x: gradient and image.

    No change at all counts under every x. Attacks without a point (too short, or wholly under the floor) are left out; without any
    trace there is no curve.
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
