"""Gains: by how much a cell is above the best of those it is compared with, such as SME's PSNR above that of its baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from leakscope_papers.comparing import SOME_BASELINES, Measured
from leakscope_papers.gaps import difference, rest
from leakscope_papers.items import Gain
from leakscope_papers.measures import Value
from leakscope_papers.naming import meets


def with_gains(gains: Mapping[str, Gain], cells: Sequence[Measured]) -> list[Measured]:
    """Return the cells, those that a gain is `of` with it; a gain says over which cell it is.

    The best baseline is the greatest of those measured in the same column, all other axes equal. Without any there is no gain.
    """
    return [replace(cell, values={**cell.values, **_gains_of(cell, gains, cells)}) for cell in cells]


def _gains_of(cell: Measured, gains: Mapping[str, Gain], cells: Sequence[Measured]) -> dict[str, Value]:
    found = {name: _gain(cell, gain, cells) for name, gain in gains.items() if meets(cell.where, gain.of)}
    return {name: value for name, value in found.items() if value is not None}


def _gain(cell: Measured, gain: Gain, cells: Sequence[Measured]) -> Value | None:
    baselines = [other for other in cells if _is_baseline(other, cell, gain)]
    if not baselines or not _has(cell, gain.measure):
        return None
    best = max(baselines, key=lambda other: other.values[gain.measure].estimate.value)
    over = f"over {', '.join(str(best.where[axis]) for axis in gain.over)}"
    if len(baselines) < _wanted(gain):
        over = f"{over}; {SOME_BASELINES}"
    return Value(difference(cell.values[gain.measure].estimate, best.values[gain.measure].estimate), over)


def _is_baseline(other: Measured, cell: Measured, gain: Gain) -> bool:
    beside = other.column == cell.column and rest(other.where, gain.over) == rest(cell.where, gain.over)
    return beside and meets(other.where, gain.over) and _has(other, gain.measure)


def _has(cell: Measured, measure: str) -> bool:
    return measure in cell.values and cell.values[measure].there


def _wanted(gain: Gain) -> int:
    """Return how many baselines there are where all of them are measured."""
    return math.prod(len(values) if isinstance(values, list) else 1 for values in gain.over.values())
