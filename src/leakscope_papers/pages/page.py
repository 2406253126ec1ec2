"""The page of the papers: an index, and printed beside measured numbers for each item, as one HTML text without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.core.version import __version__
from leakscope.report.page import render_page
from leakscope.report.sources import LIMITS, RULE
from leakscope_papers.claims import FAILS, HOLDS, SO_FAR, UNMEASURED, UNTESTED, Finding
from leakscope_papers.headlines import HOW, best_reading, commands_of, findings_to_show, headlines, in_short, incomplete
from leakscope_papers.pages import TEMPLATES
from leakscope_papers.pages.columns import RULE as COLUMN_RULE
from leakscope_papers.pages.columns import columns_of
from leakscope_papers.pages.pictures import Strip, strips_of
from leakscope_papers.pages.plot_drawing import REGIONS, PlotDrawing, draw, undrawn
from leakscope_papers.pages.plots import plotted
from leakscope_papers.pages.table import Grid, grid_of
from leakscope_papers.records import ColumnTable
from leakscope_papers.results import Result
from leakscope_papers.scales import scale_of

TONES = {HOLDS: "holds", SO_FAR: "holds", FAILS: "does"}
STYLES = ("base.css", "tables.css", "regions.css", "paper.css", "paper_plots.css")


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claim with its findings: column, verdict, the cases against it, and its tone (a CSS class)."""

    says: str
    findings: tuple[tuple[str, str, tuple[str, ...], str], ...]


@dataclass(frozen=True, slots=True)
class ItemSection:
    """The content of the page for one item."""

    result: Result
    headlines: tuple[str, ...]
    claims: tuple[ClaimRow, ...]
    short: str
    reading: str
    grid: Grid
    columns: tuple[ColumnTable, ...]
    plots: tuple[PlotDrawing, ...]
    undrawn: tuple[str, ...]
    strips: tuple[Strip, ...]
    hidden: int
    commands: str
    note: str
    incomplete: str


def section_of(result: Result) -> ItemSection:
    """Return the page's content for an item."""
    grid = grid_of(result)
    strips, hidden = strips_of(result, grid.axes)
    plots = plotted(result)
    return ItemSection(
        result=result,
        headlines=headlines(result),
        short=in_short(result),
        reading=best_reading(result.comparison),
        grid=grid,
        claims=claim_rows(result.findings),
        commands=commands_of(result),
        note=scale_of(result.item, result.scale).note,
        incomplete=incomplete(result),
        columns=columns_of(result),
        plots=tuple(draw(plot) for plot in plots if plot.panels),
        undrawn=tuple(word for word in map(undrawn, plots) if word),
        strips=strips,
        hidden=hidden,
    )


def claim_rows(findings: Sequence[Finding]) -> tuple[ClaimRow, ...]:
    """Return the claims in order, each with the finding of every column."""
    rows: dict[str, list[tuple[str, str, tuple[str, ...], str]]] = {}
    for finding in findings_to_show(findings):
        who = "" if finding.word in (UNTESTED, UNMEASURED) else finding.column.title
        rows.setdefault(finding.claim.says, []).append(
            (who, finding.sentence, finding.against, TONES.get(finding.word, "open"))
        )
    return tuple(ClaimRow(says, tuple(findings)) for says, findings in rows.items())


def render_papers(results: Sequence[Result], *, command: str) -> str:
    """Return the page of these results as one self-contained HTML text; `command` is the one that produced it."""
    values = {
        "title": "Papers: published and measured",
        "headline": "What the papers print, and what we measured",
        "explanation": HOW.replace("*", ""),
        "limits": LIMITS,
        "command": command,
        "facts": (("Version", f"leakscope {__version__}"),),
        "sections": [section_of(result) for result in results],
        "rule": RULE,
        "column_rule": COLUMN_RULE,
        "region_names": REGIONS,
    }
    return render_page("paper.html", values, styles=STYLES, folder=TEMPLATES)
