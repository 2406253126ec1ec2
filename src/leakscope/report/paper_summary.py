"""The results of paper items as Markdown: numbers and words, no pictures."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope import __version__
from leakscope.experiments.papers.claims import UNTESTED, Finding
from leakscope.experiments.papers.comparing import agreement, best_reading
from leakscope.experiments.papers.items import home_of
from leakscope.experiments.papers.results import Result
from leakscope.experiments.papers.scales import scale_of
from leakscope.report.paper_table import Entry, Grid, GridRow, grid_of
from leakscope.report.words import RULE

HOW = (
    "Rates and means stand with their 95 % interval. *agrees*: the printed number lies in it; *close*: within 5 points for a rate, 0.02 "
    "for SSIM, a factor of 3 for MSE, a fifth for the rest; *higher*, *lower*: ours is. Iterations are over successes only (attacks "
    "that converged), and so are SSIM and MSE where any converged."
)
NOTHING = "The paper prints no number that we measured here; see the claims."


def summarise_papers(results: Sequence[Result], *, command: str) -> str:
    """Return the Markdown text of these results, headed by the command that made it."""
    lines = [
        "# Papers: published beside measured",
        "",
        f"Made by `{command}` with leakscope {__version__}.",
        "",
        HOW,
        "",
        RULE,
        "",
        "| item | scale | published and measured |",
        "|---|---|---|",
        *(f"| [{r.item.name}](#{r.item.name}) | {r.scale} | {_cell(in_short(r))} |" for r in results),
    ]
    for result in results:
        lines += ["", *_section(result)]
    return "\n".join(lines) + "\n"


def headline(result: Result) -> str:
    """Return in words how an item stands: the verdicts of every judged column, or why there are none."""
    stand_in = scale_of(result.item, result.scale).stand_in
    if stand_in:
        return f"Not compared with the paper: {stand_in}."
    counted = [(c.title, agreement(result.comparison.counts[c.title])) for c in result.comparison.columns if c.judged]
    told = [f"{title}: {words}" if len(counted) > 1 else words for title, words in counted if words]
    return " ".join(told) or NOTHING


def in_short(result: Result) -> str:
    """Return an item in one line: its one column, or the reading that fits best."""
    judged = [column for column in result.comparison.columns if column.judged]
    if len(judged) < 2:
        return headline(result)
    return best_reading(result.comparison) or f"{len(judged)} readings; {NOTHING[0].lower()}{NOTHING[1:]}"


def commands_of(result: Result) -> str:
    """Return the commands that made the runs of an item."""
    own = dict.fromkeys(home_of(result.item, part)[0].name for part in result.item.parts if part.name in result.runs)
    made = "; ".join(f"leakscope paper run {name} --scale {result.scale}" for name in own)
    where = ", ".join(result.facts[name] for name in ("device", "torch", "revision") if name in result.facts)
    return f"{made} ({where})" if where else made


def _section(result: Result) -> list[str]:
    item, printed = result.item, result.item.printed
    lines = [f"## {item.name}", "", f"{printed.title}. Paper: {printed.source}. Runs: {commands_of(result)}.", ""]
    lines += [" ".join(item.about.split()), "", headline(result), ""]
    best = best_reading(result.comparison)
    lines += [best, ""] if best else []
    lines += [f"Not run: {', '.join(result.missing)}.", ""] if result.missing else []
    lines += _table(grid_of(result))
    lines += ["", *_claims(result.findings)] if result.findings else []
    if printed.doubts:
        lines += ["", "Doubts about what is printed:", "", *(f"- {doubt}" for doubt in printed.doubts)]
    return lines


def _table(grid: Grid) -> list[str]:
    if not grid.rows:
        return ["No trial has landed yet."]
    heads = [*grid.axes, "who", "n", *grid.measures]
    lines = [f"Everywhere: {grid.same}.", ""] if grid.same else []
    lines += [f"| {' | '.join(map(_cell, heads))} |", "|" + "---|" * len(heads)]
    return lines + [_line(row) for row in grid.rows]


def _line(row: GridRow) -> str:
    cells = [*row.place, row.who, row.n, *(_entry(entry) for entry in row.entries)]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _entry(entry: Entry) -> str:
    text = entry.value + (f" ({entry.interval})" if entry.interval else "")
    short = entry.over.split(" trials")[0] if entry.over else ""
    text += f", {short}" if short and entry.value != "none" else f" ({entry.over})" if entry.over else ""
    return text + (f", **{entry.verdict}**" if entry.verdict else "")


def _claims(findings: Sequence[Finding]) -> list[str]:
    """Return what became of the claims, a row for each claim and who measured."""
    lines = ["| claim | who | finding |", "|---|---|---|"]
    for place, finding in enumerate(findings):
        again = place and findings[place - 1].claim.says == finding.claim.says
        if finding.word == UNTESTED and again:
            continue
        says = "" if again else finding.claim.says
        against = f" Against: {'; '.join(finding.against[:3])}" if finding.against else ""
        more = f" and {len(finding.against) - 3} more" if len(finding.against) > 3 else ""
        lines.append(
            f"| {_cell(says)} | {_cell(finding.column.title)} | {_cell(finding.told + '.' + against + more)} |"
        )
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
