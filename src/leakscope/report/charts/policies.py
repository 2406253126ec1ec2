"""The policies of a search as an SVG scatter: privacy across, accuracy score upward, the threshold, the front."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.report import numbers
from leakscope.report.charts.scales import Scale, fit, widen
from leakscope.report.charts.shapes import Frame, Mark, Spot, Tick, legend_marker, marker, path

if TYPE_CHECKING:
    from leakscope.search.policy_search import Candidate, Found

FRAME = Frame(width=760, height=430, left=62, right=20, top=14, bottom=46)
REJECTED, PASSED, KEPT = DRAWING_ORDER = ("rejected", "passed", "kept")
COLOURS = 4
OUTLYING = 0.02  # share of the accuracy scores at the low end that may be drawn on the edge


@dataclass(frozen=True, slots=True)
class Cloud:
    """The policies of one method: colour number, legend marker, points with their fate, and the line of the front."""

    name: str
    colour: int
    symbol: str
    marks: tuple[tuple[str, Mark], ...]
    front: str


@dataclass(frozen=True, slots=True)
class ScatterDrawing:
    """A drawn scatter: ticks, clouds, the reference (no policy), the threshold's height, how many lie on the edge, words."""

    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    clouds: tuple[Cloud, ...]
    reference: Mark | None
    threshold: float | None
    edge: int
    words: str
    frame: Frame = FRAME


def draw_policies(results: Mapping[str, Found], *, threshold: float | None) -> ScatterDrawing:
    """Return the drawing of the policies of each method; lower is more private, higher is more accurate.

    Accuracy scores have a long lower tail: the lowest 2 % do not stretch the axis but stand on its lower edge.
    """
    references = [result.reference for result in results.values() if result.reference is not None]
    candidates = [c for result in results.values() for c in result.candidates] + references
    x = widen(Scale(*_ends([c.privacy for c in candidates if math.isfinite(c.privacy)])))
    y, edge = _accuracy_scale([c.accuracy for c in candidates if math.isfinite(c.accuracy)], threshold)
    spots = {id(c): (FRAME.x(x.place(c.privacy)), FRAME.y(y.place(c.accuracy))) for c in candidates}
    return ScatterDrawing(
        across=tuple((FRAME.x(at), text) for at, text in x.ticks()),
        upward=tuple((FRAME.y(at), text) for at, text in y.ticks()),
        clouds=tuple(
            _cloud(name, number, result, spots, threshold) for number, (name, result) in enumerate(results.items())
        ),
        reference=Mark(marker(3, *spots[id(references[0])]), _score_text("no policy", references[0]))
        if references
        else None,
        threshold=None if threshold is None or not y.low <= threshold <= y.high else FRAME.y(y.place(threshold)),
        edge=edge,
        words=_describe(results, threshold),
    )


def _cloud(name: str, number: int, result: Found, spots: Mapping[int, Spot], threshold: float | None) -> Cloud:
    selected = {candidate.policy for candidate in result.selection.kept}
    marks = []
    for candidate in result.candidates:
        rejected = threshold is not None and candidate.accuracy < threshold
        fate = KEPT if candidate.policy in selected else REJECTED if rejected else PASSED
        marks.append((fate, Mark(marker(number, *spots[id(candidate)]), _score_text(candidate.policy, candidate))))
    front = path([spots[id(candidate)] for candidate in result.front]) if len(result.front) > 1 else ""
    ordered = tuple(sorted(marks, key=lambda mark: DRAWING_ORDER.index(mark[0])))
    return Cloud(name, number % COLOURS, legend_marker(number), ordered, front)


def _accuracy_scale(values: list[float], threshold: float | None) -> tuple[Scale, int]:
    """Return the scale of accuracy scores and how many of them lie below it."""
    ordered = sorted(values)
    low = ordered[math.floor(OUTLYING * len(ordered))] if ordered else 0.0
    ends = [low, *ordered[-1:], *([threshold] if threshold is not None else [])]
    scale = widen(Scale(*_ends(ends)))
    return scale, sum(value < scale.low for value in values)


def _ends(values: list[float]) -> tuple[float, float]:
    scale = fit([min(values, default=0.0), max(values, default=1.0)])
    return (scale.low, scale.high) if not scale.log else (min(values), max(values))


def _score_text(name: str, candidate: Candidate) -> str:
    return f"{name}: privacy {numbers.number(candidate.privacy)}, accuracy score {numbers.number(candidate.accuracy)}"


def _describe(results: Mapping[str, Found], threshold: float | None) -> str:
    parts = [
        f"{name}: {len(result.candidates)} policies, {result.selection.rejected} under the threshold, "
        f"{len(result.front)} that none beats on both scores"
        for name, result in results.items()
    ]
    line = "" if threshold is None else f", threshold {numbers.short(threshold)}"
    return f"Privacy across (lower is more private), accuracy score upward{line}. " + "; ".join(parts)
