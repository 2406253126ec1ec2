"""Shapes in a plot of an item: interval bars, bands, columns, and the thin dashed line of chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from leakscope.report import numbers
from leakscope.report.chart import _path
from leakscope_papers.pages.plots import Point

Spot: TypeAlias = tuple[float, float]
Placing: TypeAlias = Callable[[float | str, float], Spot]
ABOVE, BELOW, HIGHEST = 4, 13, 44.0  # where the word stands beside its line, and from what height on it stands above


@dataclass(frozen=True, slots=True)
class Chance:
    """What guessing gives: its line, where its word ends, and words for it."""

    path: str
    x: float
    y: float
    words: str


def whisker(spot: Placing, point: Point) -> str:
    """Return the bar of a point's interval; empty without one."""
    if not (math.isfinite(point.value.low) and math.isfinite(point.value.high)):
        return ""
    (x, low), (_, high) = spot(point.x, point.value.low), spot(point.x, point.value.high)
    return f"M{x:g} {low:g}V{high:g}M{x - 2.5:g} {low:g}h5M{x - 2.5:g} {high:g}h5"


def band(spot: Placing, points: Sequence[Point]) -> str:
    """Return the outline between both ends of the intervals; empty for fewer than two of them."""
    known = [p for p in points if math.isfinite(p.value.low)]
    if len(known) < 2:
        return ""
    return _path([*(spot(p.x, p.value.high) for p in known), *(spot(p.x, p.value.low) for p in known[::-1])]) + "Z"


def column(spot: Placing, point: Point, half: float) -> str:
    """Return the outline of a column from 0 to the point, `half` wide on either side."""
    (x, top), (_, foot) = spot(point.x, point.value.value), spot(point.x, 0.0)
    return f"M{x - half:g} {foot:g}V{top:g}h{2 * half:g}V{foot:g}Z"


def chance_line(found: Sequence[tuple[Spot, float]], edges: tuple[float, float], half: float) -> Chance | None:
    """Return the line of chance through (place, value): level from edge to edge where it is the same at every place.

    With `half` (places are words) a dash so wide on either side of each place, as chance may differ from word to word.
    """
    if not found:
        return None
    spots = sorted(dict(found).items())
    (x, y), last = spots[-1]
    first = spots[0][1]
    if half:
        path, x = "".join(f"M{at - half:g} {up:g}h{2 * half:g}" for (at, up), _ in spots), x + half
    elif len({round(value, 9) for _, value in spots}) == 1:
        path, x = _path([(edges[0], y), (edges[1], y)]), edges[1] - ABOVE
    else:
        path = _path([spot for spot, _ in spots])
    level = math.isclose(first, last)
    told = numbers.number(last) if level else f"from {numbers.number(first)} to {numbers.number(last)}"
    return Chance(path, round(x, 1), y - ABOVE if y > HIGHEST else y + BELOW, f"chance {told}")
