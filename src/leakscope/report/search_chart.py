"""The policies of a search as the coordinates of an SVG drawing: privacy across, accuracy score upward, the threshold, the front."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.report import numbers
from leakscope.report.chart import Mark, _marker, _path
from leakscope.report.scales import Scale, fit, widen

if TYPE_CHECKING:
    from leakscope.search.policy_search import Candidate, Found

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 14, 46
REJECTED, PASSED, KEPT = ORDER = ("rejected", "passed", "kept")  # as they are drawn, one over the other
TONES = 4
OUTLYING = 0.02  # of the accuracy scores, so many at the low end may be drawn on the edge


@dataclass(frozen=True, slots=True)
class Cloud:
    """The policies of one method: colour, signs in the legend, points of each fate, and the line of those none beats."""

    name: str
    colour: int
    symbol: str
    marks: tuple[tuple[str, Mark], ...]
    front: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A scatter ready to be written: ticks as (place, text), clouds, no policy, the threshold's height, words for it."""

    across: tuple[tuple[float, str], ...]
    upward: tuple[tuple[float, str], ...]
    clouds: tuple[Cloud, ...]
    reference: Mark | None
    threshold: float | None
    edge: int
    words: str
    width: int = WIDTH
    height: int = HEIGHT
    first: int = LEFT
    last: int = WIDTH - RIGHT
    floor: int = HEIGHT - BOTTOM
    top: int = TOP


def draw(found: Mapping[str, Found], *, threshold: float | None) -> Drawing:
    """Return the drawing of the policies that methods found; lower is more private, higher is more accurate.

    Accuracy scores have a long lower tail: the lowest 2 % do not stretch the axis but stand on its lower edge.
    """
    references = [each.reference for each in found.values() if each.reference is not None]
    every = [c for each in found.values() for c in each.candidates] + references
    across = [c.privacy for c in every if math.isfinite(c.privacy)]
    x = widen(Scale(*_ends(across)))
    y, edge = _upward([c.accuracy for c in every if math.isfinite(c.accuracy)], threshold)
    where = {id(c): (_x(x.place(c.privacy)), _y(y.place(c.accuracy))) for c in every}
    shown = threshold is not None and y.low <= threshold <= y.high
    return Drawing(
        across=tuple((_x(at), text) for at, text in x.ticks()),
        upward=tuple((_y(at), text) for at, text in y.ticks()),
        clouds=tuple(_cloud(name, number, one, where, threshold) for number, (name, one) in enumerate(found.items())),
        reference=Mark(_marker(3, *where[id(references[0])]), _says("no policy", references[0]))
        if references
        else None,
        threshold=_y(y.place(threshold)) if shown and threshold is not None else None,
        edge=edge,
        words=_words(found, threshold),
    )


def _cloud(
    name: str, number: int, found: Found, where: Mapping[int, tuple[float, float]], threshold: float | None
) -> Cloud:
    kept = {each.policy for each in found.selection.kept}
    marks = []
    for each in found.candidates:
        rejected = threshold is not None and each.accuracy < threshold
        fate = KEPT if each.policy in kept else REJECTED if rejected else PASSED
        marks.append((fate, Mark(_marker(number, *where[id(each)]), _says(each.policy, each))))
    front = _path([where[id(each)] for each in found.front]) if len(found.front) > 1 else ""
    ordered = tuple(sorted(marks, key=lambda mark: ORDER.index(mark[0])))
    return Cloud(name, number % TONES, _marker(number, 14, 8), ordered, front)


def _upward(values: list[float], threshold: float | None) -> tuple[Scale, int]:
    """Return the scale of accuracy scores and how many of them lie below it."""
    ordered = sorted(values)
    low = ordered[math.floor(OUTLYING * len(ordered))] if ordered else 0.0
    ends = [low, *ordered[-1:], *([threshold] if threshold is not None else [])]
    scale = widen(Scale(*_ends(ends)))
    return scale, sum(value < scale.low for value in values)


def _ends(values: list[float]) -> tuple[float, float]:
    made = fit([min(values, default=0.0), max(values, default=1.0)])
    return (made.low, made.high) if not made.log else (min(values), max(values))


def _says(name: str, scored: Candidate) -> str:
    return f"{name}: privacy {numbers.number(scored.privacy)}, accuracy score {numbers.number(scored.accuracy)}"


def _words(found: Mapping[str, Found], threshold: float | None) -> str:
    told = [
        f"{name}: {len(each.candidates)} policies, {each.selection.rejected} under the threshold, "
        f"{len(each.front)} that none beats on both scores"
        for name, each in found.items()
    ]
    line = "" if threshold is None else f", threshold {numbers.short(threshold)}"
    return f"Privacy across (lower is more private), accuracy score upward{line}. " + "; ".join(told)


def _x(at: float) -> float:
    return round(LEFT + at * (WIDTH - LEFT - RIGHT), 1)


def _y(at: float) -> float:
    return round(HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM), 1)
