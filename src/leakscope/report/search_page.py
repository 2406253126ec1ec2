"""The page of a policy search: privacy against accuracy of every policy, the kept ones and their effect on images."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError
from leakscope.core.version import __version__
from leakscope.report import numbers
from leakscope.report.charts.scales import Scale, fit, widen
from leakscope.report.charts.shapes import Frame, Mark, Spot, Tick, legend_marker, marker, path
from leakscope.report.page import render_page, write_page
from leakscope.report.pictures import drawable, pixels, png, shrink
from leakscope.report.sources import now_text

if TYPE_CHECKING:
    from leakscope.search.candidates import Candidate
    from leakscope.search.policies import Walk
    from leakscope.search.records import SearchResult
    from leakscope.search.settings import PolicySearch

STYLES = ("base.css", "tables.css", "pictures.css", "narrow.css", "search.css")
MOST_ROWS = 200
SIDE = 96
LIMITS = (
    "Both scores stand in for what they are named after. The privacy score need not follow what an attack recovers: a reproduction "
    "found no correlation with PSNR, and the attacker who knows of a policy gets around much of it. The accuracy score is that of an "
    "untrained network. Attack and train with a policy before trusting it (docs/how-to/policies.md). One network, one seed, one set of "
    "pictures: the scores of a policy have no interval here."
)


@dataclass(frozen=True, slots=True)
class Strip:
    """A policy applied to images: one row of PNGs per image, a caption per column."""

    policy: str
    captions: tuple[str, ...]
    rows: tuple[tuple[bytes, ...], ...]


def render_search(
    settings: PolicySearch,
    results: Mapping[str, SearchResult],
    walks: Sequence[Walk] = (),
    *,
    command: str,
    device: str | None = None,
) -> str:
    """Return the page of the results of each method as one self-contained HTML text; `command` created it."""
    if not any(result.candidates for result in results.values()):
        raise InputError("no policy is scored yet: there is nothing to show")
    values = {
        "title": "policy search" if len(results) == 1 else "policy searches compared",
        "headline": headline(settings, results),
        "explanation": explanation(settings, results),
        "limits": LIMITS,
        "command": command,
        "facts": _facts(settings, results, device),
        "drawing": draw_policies(results, threshold=settings.threshold),
        "settings": settings,
        "privacy": privacy_name(settings),
        "results": results,
        "rows": {name: _rows(result) for name, result in results.items()},
        "strips": [_strip(walk) for walk in walks],
    }
    return render_page("search.html", values, styles=STYLES)


def write_search(
    settings: PolicySearch,
    results: Mapping[str, SearchResult],
    walks: Sequence[Walk],
    path: Path,
    *,
    command: str,
    device: str | None,
) -> Path:
    """Write the page to `path` and return it; missing folders are created."""
    return write_page(render_search(settings, results, walks, command=command, device=device), path)


def privacy_name(settings: PolicySearch) -> str:
    """Return the name of the privacy score."""
    return "PSNR of an attack, dB" if settings.score == "attack" else "privacy score"


def headline(settings: PolicySearch, results: Mapping[str, SearchResult]) -> str:
    """Return the outcome in one sentence."""
    if len(results) > 1:
        areas = [f"{name} {numbers.number(one.area)}" for name, one in results.items() if one.area is not None]
        return f"Area beyond no policy at equal cost: {', '.join(areas) or 'not known'}"
    (one,) = results.values()
    if not one.selection.kept:
        return f"None of {len(one.candidates):,} policies passes the accuracy threshold {numbers.short(settings.threshold or 0)}"
    best = one.selection.kept[0]
    against = "" if one.reference is None else f", against {numbers.number(one.reference.privacy)} without a policy"
    score = f"{privacy_name(settings)} {numbers.number(best.privacy)}{against}"
    return f"The most private of {len(one.candidates):,} policies is {best.policy}: {score}"


def explanation(settings: PolicySearch, results: Mapping[str, SearchResult]) -> str:
    """Return in sentences how many policies were scored, rejected and kept, and how many are worse than none."""
    lines = []
    for name, result in results.items():
        who = "" if len(results) == 1 else f"{name}: "
        line = f"{who}{len(result.candidates):,} policies were scored"
        if settings.threshold is not None:
            line += f", {result.selection.rejected:,} rejected by the accuracy threshold {numbers.short(settings.threshold)}"
        line += f", {len(result.selection.kept)} kept"
        if result.worse is not None:
            line += f"; {numbers.percent(result.worse)} of all are worse than no policy on both scores"
        if result.left:
            line += f"; {result.left} are still to be scored"
        lines.append(line)
    return ". ".join(lines) + "."


def _rows(result: SearchResult) -> list[tuple[Candidate, str]]:
    """Return every candidate with its outcome, most private first."""
    groups = (("kept", result.selection.kept), ("none beats it on both", result.front))
    fates = [(fate, {candidate.policy for candidate in group}) for fate, group in groups]
    ordered = sorted(result.candidates, key=lambda candidate: (candidate.privacy, candidate.policy))
    return [
        (candidate, ", ".join(fate for fate, policies in fates if candidate.policy in policies))
        for candidate in ordered[:MOST_ROWS]
    ]


def _strip(walk: Walk) -> Strip:
    number = len(walk.steps[0])
    rows = [
        tuple(png(shrink(pixels(drawable(step[place].float() / 255)), SIDE)) for step in walk.steps)
        for place in range(number)
    ]
    return Strip(walk.policy, ("private picture", *walk.words), tuple(rows))


def _facts(
    settings: PolicySearch, results: Mapping[str, SearchResult], device: str | None
) -> tuple[tuple[str, str], ...]:
    plain = dataclasses.asdict(settings)
    if len(results) > 1:
        plain["method"] = " and ".join(results)
    return (
        ("Version", f"leakscope {__version__}"),
        ("Date", now_text()),
        ("Machine", f"{platform.machine()}, {device}, float32" if device else f"{platform.machine()} (made this page)"),
        *((name.replace("_", " "), "none" if value is None else str(value)) for name, value in plain.items()),
    )


FRAME = Frame(width=760, height=430, left=62, right=20, top=14, bottom=46)
REJECTED, PASSED, KEPT = DRAWING_ORDER = ("rejected", "passed", "kept")
COLOURS = 4
OUTLYING = 0.02  # share of the lowest accuracy scores drawn on the lower edge instead of stretching the axis


@dataclass(frozen=True, slots=True)
class Cloud:
    """The policies of one method: points with their outcome, and the line of the Pareto front."""

    name: str
    colour: int
    symbol: str
    marks: tuple[tuple[str, Mark], ...]
    front: str


@dataclass(frozen=True, slots=True)
class ScatterDrawing:
    """A drawn scatter; `edge` counts the policies on the lower edge, `reference` is no policy."""

    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    clouds: tuple[Cloud, ...]
    reference: Mark | None
    threshold: float | None
    edge: int
    words: str
    across_name: str = "privacy score"
    threshold_value: float | None = None
    frame: Frame = FRAME


def draw_policies(results: Mapping[str, SearchResult], *, threshold: float | None) -> ScatterDrawing:
    """Return the scatter of the policies of each method: lower privacy score is better, higher accuracy is better."""
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
        words=_describe_chart(results, threshold),
    )


def _cloud(name: str, number: int, result: SearchResult, spots: Mapping[int, Spot], threshold: float | None) -> Cloud:
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


def _describe_chart(results: Mapping[str, SearchResult], threshold: float | None) -> str:
    parts = [
        f"{name}: {len(result.candidates)} policies, {result.selection.rejected} under the threshold, "
        f"{len(result.front)} that none beats on both scores"
        for name, result in results.items()
    ]
    line = "" if threshold is None else f", threshold {numbers.short(threshold)}"
    return f"Privacy across (lower is more private), accuracy score upward{line}. " + "; ".join(parts)
