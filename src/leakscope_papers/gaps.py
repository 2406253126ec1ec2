"""Gaps between measured cells, for claims such as "the gap between two attacks grows with the epochs"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope_papers.items import Conditions
from leakscope_papers.measures import Value
from leakscope_papers.naming import meets


def gaps_to(
    minus: Conditions, known: Sequence[tuple[Mapping[str, Plain], Value]]
) -> list[tuple[Mapping[str, Plain], Value]]:
    """Return by how much every cell exceeds the one with these settings, all other axes equal."""
    found = []
    for where, ours in known:
        for other, theirs in known:
            if meets(other, minus) and not meets(where, minus) and rest(where, minus) == rest(other, minus):
                found.append((where, Value(difference(ours.estimate, theirs.estimate), ours.over)))
    return found


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return a - b with the n of a.

    The interval is that of a difference of two independent numbers from the intervals of both (Donner and Zou 2012), for means of
    equal halves sqrt(half^2 + half^2) to each side: wider than it need be where both cells attack the same clients.

        low = a - b - sqrt((a - a_low)^2 + (b_high - b)^2),      high = a - b + sqrt((a_high - a)^2 + (b - b_low)^2)
    """
    gap = a.value - b.value
    down, up = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(gap, gap - down, gap + up, a.n, a.trials)


def rest(where: Mapping[str, Plain], without: Conditions) -> dict[str, Plain]:
    """Return a place but for these axes."""
    return {axis: value for axis, value in where.items() if axis not in without}
