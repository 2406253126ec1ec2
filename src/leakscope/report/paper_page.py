"""The page of the papers: an index, and for each item what is printed beside what was measured; one HTML text without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope import __version__
from leakscope.experiments.papers.claims import UNTESTED, Finding
from leakscope.experiments.papers.comparing import best_reading
from leakscope.experiments.papers.results import Result
from leakscope.experiments.papers.scales import scale_of
from leakscope.report.page import _environment, _read
from leakscope.report.paper_pictures import Strip, strips_of
from leakscope.report.paper_summary import HOW, commands_of, headline, in_short
from leakscope.report.paper_table import Grid, grid_of
from leakscope.report.words import LIMITS, RULE

STYLES = ("base.css", "tables.css", "paper.css")


@dataclass(frozen=True, slots=True)
class Told:
    """One claim with its findings: column, sentence, and the cases that speak against it."""

    says: str
    findings: tuple[tuple[str, str, tuple[str, ...], str], ...]


@dataclass(frozen=True, slots=True)
class ItemSection:
    """Everything that the page says about one item."""

    result: Result
    headline: str
    short: str
    reading: str
    grid: Grid
    claims: tuple[Told, ...]
    commands: str
    note: str
    strips: tuple[Strip, ...]
    hidden: int


def section_of(result: Result) -> ItemSection:
    """Return what the page says about an item."""
    grid = grid_of(result)
    strips, hidden = strips_of(result, grid.axes)
    return ItemSection(
        result=result,
        headline=headline(result),
        short=in_short(result),
        reading=best_reading(result.comparison),
        grid=grid,
        claims=tell_claims(result.findings),
        commands=commands_of(result),
        note=scale_of(result.item, result.scale).note,
        strips=strips,
        hidden=hidden,
    )


def tell_claims(findings: Sequence[Finding]) -> tuple[Told, ...]:
    """Return the claims in order, each with what every column says about it."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.claim.says, []).append(finding)
    return tuple(
        Told(
            says,
            tuple((f.column.title, f.told, f.against, f.word) for f in (own[:1] if own[0].word == UNTESTED else own)),
        )
        for says, own in found.items()
    )


def render_papers(results: Sequence[Result], *, command: str) -> str:
    """Return the page of these results as one self-contained HTML text; `command` made it."""
    from markupsafe import Markup

    return (
        _environment()
        .get_template("paper.html")
        .render(
            sections=[section_of(result) for result in results],
            style=Markup(_read(STYLES)),
            how=HOW.replace("*", ""),
            rule=RULE,
            limits=LIMITS,
            command=command,
            version=__version__,
        )
    )
