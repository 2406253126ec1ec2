"""Differences between cells: gaps for claims such as "the gap grows with the epochs", and gains over the best baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import SOME_BASELINES, Measured
from leakscope_papers.items import Conditions, Gain
from leakscope_papers.measures import Value
from leakscope_papers.naming import meets


def gaps_to(
    minus: Conditions, known: Sequence[tuple[Mapping[str, Plain], Value]]
) -> list[tuple[Mapping[str, Plain], Value]]:
    """Return by how much every cell exceeds the one with these settings, all other axes equal."""
    gaps = []
    for where, ours in known:
        for other, theirs in known:
            if meets(other, minus) and not meets(where, minus) and rest(where, minus) == rest(other, minus):
                gaps.append((where, Value(difference(ours.estimate, theirs.estimate), ours.over)))
    return gaps


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return a - b with the n of a.

    The interval treats a and b as independent (Donner and Zou 2012), so it is too wide if both cells attack the same clients:
        low = a - b - sqrt((a - a_low)^2 + (b_high - b)^2),      high = a - b + sqrt((a_high - a)^2 + (b - b_low)^2)
    """
    gap = a.value - b.value
    down, up = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(gap, gap - down, gap + up, a.n, a.trials)


def rest(where: Mapping[str, Plain], without: Conditions) -> dict[str, Plain]:
    """Return a place without these axes."""
    return {axis: value for axis, value in where.items() if axis not in without}


def with_gains(gains: Mapping[str, Gain], cells: Sequence[Measured]) -> list[Measured]:
    """Return the cells with their gains over the largest baseline of the same column, all other axes equal; recorded gains stay."""
    return [replace(cell, values={**_gains_of(cell, gains, cells), **cell.values}) for cell in cells]


def _gains_of(cell: Measured, gains: Mapping[str, Gain], cells: Sequence[Measured]) -> dict[str, Value]:
    values = {name: _gain(cell, gain, cells) for name, gain in gains.items() if meets(cell.where, gain.of)}
    return {name: value for name, value in values.items() if value is not None}


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
    return measure in cell.values and cell.values[measure].has_number


def _wanted(gain: Gain) -> int:
    """Return the number of baselines of a gain."""
    return math.prod(len(values) if isinstance(values, list) else 1 for values in gain.over.values())
