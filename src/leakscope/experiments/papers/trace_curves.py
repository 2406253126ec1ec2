"""What traces show as a curve: Mixing's figures 1 and 2, the changes at the end of the attacks of a cell, as a distribution."""

from __future__ import annotations

import torch

from leakscope.analysis.convergence import change_ratios
from leakscope.experiments.papers.measures import FLOOR
from leakscope.experiments.papers.programs.rows import Curve
from leakscope.experiments.papers.scored import Scored

CHANGES = "change over value at the end"
DECADES, A_DECADE = (-8, 1), 4  # from 1e-8 to 10, four places a decade


def trace_curves(cell: Scored) -> dict[str, Curve]:
    """Return for each attack the share of its last points whose log10 of change over value is at most x.

    No change at all counts under every x. Attacks without a point (too short, or wholly under the floor) are left out; without any
    trace there is no curve.
    """
    if cell.trace is None or cell.trace_at is None:
        return {}
    ratios = change_ratios(cell.trace, cell.trace_at, floor=FLOOR, resting=cell.stalled)
    ratios = ratios[(~ratios.isnan()).any(1)]
    if not len(ratios):
        return {}
    low, high = DECADES
    x = torch.linspace(low, high, (high - low) * A_DECADE + 1, dtype=torch.float64)
    under = (ratios[:, :, None] <= x).double().sum(1) / (~ratios.isnan()).sum(1, keepdim=True)
    return {CHANGES: Curve(tuple(x.tolist()), tuple(tuple(row) for row in under.tolist()))}
