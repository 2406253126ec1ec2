"""Where every table and figure of the papers stands: docs/papers.md, and a line for each paper."""

from __future__ import annotations

from collections import Counter

from leakscope_papers.items import Item, choose_items
from leakscope_papers.notes import read_notes
from leakscope_papers.pages.readme import markdown_row
from leakscope_papers.pages.table import reasons_of
from leakscope_papers.registry import papers
from leakscope_papers.results import FULL, Result
from leakscope_papers.scales import SCALES
from leakscope_papers.status import Numbers, missing_reason, numbers_of, recorded_results, rows_of, total

HEAD = """\
# The papers, item by item

Written by `tools/papers.py` from the recorded results; do not edit it by hand. [Tables of papers](how-to/papers.md) explains how an item is
run and compared; the page of a paper shows every number. *Measured* counts the printed numbers that we measured, *at size* those at n >= 50
or at the paper's own size. Of the readings of a paper the one with most numbers that agree or are close counts. Hours are estimates for the
parts without a row (`leakscope paper run --dry-run --device cuda`).
"""
NO_NUMBER = "prints no number"


def paper_line(paper: str, numbers: Numbers) -> str:
    """Return how the printed numbers of a paper stand, as one line.

    >>> paper_line("cpl", Numbers(200, 150, 75, 60, 70))
    'cpl: 150 of 200 printed numbers measured (75 %), 75 at n >= 50 or print size (38 %); of those measured 60 agree or are close (40 %)'
    """
    return (
        f"{paper}: {numbers.measured} of {numbers.printed} printed numbers measured ({_share(numbers.measured, numbers.printed)}), "
        f"{numbers.large} at n >= 50 or print size ({_share(numbers.large, numbers.printed)}); of those measured {numbers.alike} "
        f"agree or are close ({_share(numbers.alike, numbers.measured)})"
    )


def summary_table(folder: str) -> str:
    """Return a Markdown table of the papers, one a line; `folder` is the path from the page to the folder of the papers."""
    lines = [
        "| paper | printed numbers | measured | at size | agree or close, of those measured |",
        "|---|---|---|---|---|",
    ]
    for paper, home in papers().items():
        numbers, notes = total(choose_items([paper])), read_notes(home)
        title = f"[{notes.title if notes else paper}]({folder}/{paper}/README.md)"
        shares = [_of(numbers.measured, numbers.printed), _of(numbers.large, numbers.printed)]
        lines.append(markdown_row([title, str(numbers.printed), *shares, _of(numbers.alike, numbers.measured)]))
    return "\n".join(lines)


def standing_page() -> str:
    """Return docs/papers.md: the papers, and below them every item with its size, its numbers and why they differ or are missing."""
    lines = [HEAD, summary_table("../src/leakscope_papers"), ""]
    for paper, home in papers().items():
        notes = read_notes(home)
        lines += [f"## {notes.title if notes else paper}", ""]
        lines += [
            "| item | what | measured at | agree or close, measured, printed | why others differ or are missing |",
            "|---|---|---|---|---|",
        ]
        lines += [markdown_row(_cells(paper, item)) for item in choose_items([paper])]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _cells(paper: str, item: Item) -> list[str]:
    """Return the row of an item: name, title, size, numbers, reasons."""
    numbers, results = numbers_of(item), list(recorded_results(item.name).values())
    counted = f"{numbers.alike}, {numbers.measured}, {numbers.printed}" if numbers.printed else NO_NUMBER
    head = [item.name.removeprefix(f"{paper}-").replace("-", " "), item.printed.title]
    stands = "; ".join(map(_size, results)) or "not run"
    return [*head, stands, counted, "; ".join([*_differs(results[:1], numbers.apart), *_missing(item)])]


def _size(result: Result) -> str:
    """Return the scale of a result and the range of n of its rows."""
    sizes = sorted({cell.trials for cell in result.cells})
    n = f"n {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "") if sizes else "no row"
    return f"{'print size' if result.scale == FULL else result.scale}, {n}"


def _differs(results: list[Result], apart: int) -> list[str]:
    """Return how many numbers differ, with the most frequent likely reason."""
    reasons = Counter({reason: len(numbers) for result in results for reason, numbers in reasons_of(result).items()})
    why = f": {reasons.most_common(1)[0][0]}" if reasons else ""
    return [f"{apart} differ{'s' * (apart == 1)}{why}"] if apart else []


def _missing(item: Item) -> list[str]:
    """Return why rows are missing and claims are not tested."""
    counts = {scale: rows_of(item, scale) for scale in item.scales if scale != SCALES[0]}
    cannot = dict.fromkeys(claim.cannot for claim in item.claims if claim.cannot)
    return [words for words in (missing_reason(item, counts), *cannot) if words]


def _of(part: int, whole: int) -> str:
    return f"{part} ({_share(part, whole)})"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"
