"""The results of paper items as Markdown: numbers and words, no pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from leakscope.core.version import __version__
from leakscope.report.cells import axis_value_text as say
from leakscope.report.sources import RULE
from leakscope_papers.claims import UNMEASURED, UNTESTED, Finding
from leakscope_papers.comparing import BY_CONTENT, HIGHER, LEAST, LOWER, NO_SUCCESS, WIDE, Column, agreement
from leakscope_papers.items import home_of
from leakscope_papers.pages.columns import RULE as COLUMN_RULE
from leakscope_papers.pages.columns import ColumnTable, columns_of
from leakscope_papers.pages.table import Entry, Grid, GridRow, grid_of
from leakscope_papers.readings import best_reading
from leakscope_papers.results import Result
from leakscope_papers.scales import scale_of
from leakscope_papers.titles import title_of

HOW = (
    "Rates and means stand with their 95 % interval. *agrees*: the printed number lies in it; *close*: within 5 points for a rate, 0.02 "
    "for SSIM and cosines, 1 dB for PSNR, a factor of 3 for MSE, a fifth for the rest; *higher*, *lower*: ours is. *Too few to say*, and "
    f"not counted: fewer than {LEAST} successes stand behind a number over successes, or the printed number lies in an interval that "
    f"reaches more than {WIDE} times as far as *close* does (an MSE: down to 0). Iterations are over successes only (attacks that "
    "converged), and so are SSIM and MSE where any converged. A claim that *holds, undecided at this n* holds in our values, with "
    "intervals that meet in every case."
)
APART = (HIGHER, LOWER, BY_CONTENT, NO_SUCCESS)
NOTHING = "The paper prints no number that we measured here; see the claims."

TITLE = "Papers: published beside measured"


def under_own_words(before: str, summary: str) -> str:
    """Return the summary below what somebody wrote above an earlier one, its headings a level down; alone if there is nothing.

    >>> under_own_words(f"Mine.\\n\\n## {TITLE}\\nold", f"# {TITLE}\\nnew")
    'Mine.\\n\\n## Papers: published beside measured\\nnew'
    """
    found = re.search(rf"(?m)^##? {TITLE}$", before)
    own = before[: found.start()] if found else ""
    return own + re.sub(r"(?m)^(?=#+ )", "#", summary) if own.strip() else summary


def summarise_papers(results: Sequence[Result], *, command: str) -> str:
    """Return the Markdown text of these results, headed by the command that made it."""
    lines = [
        f"# {TITLE}",
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
    return " ".join(headlines(result))


def headlines(result: Result) -> tuple[str, ...]:
    """Return the same, a sentence for each column."""
    stand_in = scale_of(result.item, result.scale).stand_in
    if stand_in:
        return (f"Not compared with the paper: {stand_in}.",)
    counted = [(c.title, agreement(result.comparison.counts[c.title])) for c in _speaking(result)]
    told = [f"{title}: {words}" if len(counted) > 1 else words for title, words in counted if words]
    return tuple(told) or (NOTHING,)


def in_short(result: Result) -> str:
    """Return an item in one line: its one column, or the reading that fits best."""
    judged = _speaking(result)
    if len(judged) < 2:
        return headline(result)
    return best_reading(result.comparison) or f"{len(judged)} readings; {NOTHING[0].lower()}{NOTHING[1:]}"


def _speaking(result: Result) -> list[Column]:
    """Return the judged columns with a cell that no column before them has: a reading not run apart says nothing new."""
    seen: set[tuple[str, str]] = set()
    found: list[Column] = []
    for column in result.comparison.columns:
        own = {(cell.cell, repr(sorted(cell.where.items()))) for cell in result.cells if cell.column == column}
        if column.judged and own - seen:
            found.append(column)
            seen |= own
    return found or [column for column in result.comparison.columns if column.judged][:1]


def incomplete(result: Result) -> str:
    """Return in words which runs are missing and which are there in part; nothing where all is there."""
    told = [f"Not run: {', '.join(result.missing)}."] if result.missing else []
    parts = ", ".join(f"{name} ({words})" for name, words in result.partial.items())
    told += [f"Run in part: {parts}; each row says its n."] if parts else []
    return " ".join(told)


def reasons_of(result: Result) -> dict[str, list[str]]:
    """Return every likely reason of a difference -> the numbers it is given for, in words."""
    found: dict[str, list[str]] = {}
    for line in result.comparison.lines:
        place = ", ".join(f"{axis} {say(line.where[axis])}" for axis in grid_of(result).axes if axis in line.where)
        for (_, measure), verdict in line.verdicts.items():
            if verdict.reason and verdict.word in APART:
                words = f"{title_of(measure)} at {place}"
                own = found.setdefault(verdict.reason, [])
                own += [] if words in own else [words]
    return found


def told_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings worth a row: of those that looked at nothing one, and only where no other speaks of the claim."""
    claims: dict[str, list[Finding]] = {}
    for finding in findings:
        claims.setdefault(finding.claim.says, []).append(finding)
    found: list[Finding] = []
    for own in claims.values():
        spoken = [finding for finding in own if finding.word not in (UNTESTED, UNMEASURED)]
        empty = next((finding for finding in own if finding.unseen), own[0])
        found += spoken or [replace(empty, column=Column("", ""), rule="")]
    return found


def commands_of(result: Result) -> str:
    """Return the commands that made the runs of an item."""
    own = dict.fromkeys(home_of(result.item, part)[0].name for part in result.item.parts if part.name in result.runs)
    made = "; ".join(f"leakscope paper run {name} --scale {result.scale}" for name in own)
    where = ", ".join(result.facts[name] for name in ("device", "torch", "revision") if name in result.facts)
    return f"{made} ({where})" if where else made


def _section(result: Result) -> list[str]:
    item, printed = result.item, result.item.printed
    lines = [f"## {item.name}", "", f"{printed.title}. Paper: {printed.source}. Runs: {commands_of(result)}.", ""]
    told = headlines(result)
    lines += [" ".join(item.about.split()), "", *(told if len(told) == 1 else [f"- {words}" for words in told]), ""]
    best = best_reading(result.comparison)
    lines += [best, ""] if best else []
    lines += [incomplete(result), ""] if incomplete(result) else []
    lines += _table(grid_of(result))
    lines += [line for table in columns_of(result) for line in ("", *_columns(table))]
    lines += ["", *_reasons(result)] if reasons_of(result) else []
    lines += ["", *_claims(told_findings(result.findings))] if result.findings else []
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


def _columns(table: ColumnTable) -> list[str]:
    """Return how often each column of a part's table was right."""
    heads = ["column", *table.heads]
    lines = [f"Columns of {table.part}. {COLUMN_RULE}", "", f"| {' | '.join(map(_cell, heads))} |"]
    lines.append("|" + "---|" * len(heads))
    told = [(name, *(f"{share} ({interval})" for share, interval in found)) for name, found in table.rows]
    return lines + [f"| {' | '.join(map(_cell, row))} |" for row in told]


def _reasons(result: Result) -> list[str]:
    """Return the likely reasons as a list, each with the first numbers it is given for."""
    lines = ["Likely reasons, and the numbers they are given for:", ""]
    for reason, places in reasons_of(result).items():
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        lines.append(f"- {reason}: {'; '.join(places[:2])}{more}")
    return lines


def _claims(findings: Sequence[Finding]) -> list[str]:
    """Return what became of the claims, a row for each claim and who measured."""
    lines = ["| claim | who | finding |", "|---|---|---|"]
    for place, finding in enumerate(findings):
        again = place and findings[place - 1].claim.says == finding.claim.says
        says = "" if again else finding.claim.says
        against = f" Against: {'; '.join(finding.against[:3])}" if finding.against else ""
        more = f" and {len(finding.against) - 3} more" if len(finding.against) > 3 else ""
        lines.append(f"| {_cell(says)} | {_cell(_who(finding))} | {_cell(finding.told + '.' + against + more)} |")
    return lines


def _who(finding: Finding) -> str:
    return "" if finding.word in (UNTESTED, UNMEASURED) else finding.column.title


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
