"""Summaries of an item: verdict counts, the reading that fits best, missing runs, rows of other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from leakscope_papers.claims import UNMEASURED, UNTESTED, Finding
from leakscope_papers.comparing import (
    ABSENT,
    AGREES,
    ALIKE,
    BY_CONTENT,
    CLOSE_BY,
    HIGHER,
    JUDGED,
    LEAST,
    LOWER,
    NO_SUCCESS,
    NOT_RECORDED,
    NOT_RUN,
    TOO_FEW,
    WIDE,
    Comparison,
    Measured,
)
from leakscope_papers.items import home_of
from leakscope_papers.naming import Column
from leakscope_papers.results import Result
from leakscope_papers.scales import scale_of

HOW = (
    "Brackets are 95 % intervals. *agrees*: the printed number is in the interval. *close*: within 5 points for a rate, 0.02 for SSIM "
    "and cosines, 1 dB for PSNR, a factor of 3 for MSE, a fifth for the rest. *higher*, *lower*: our number is. *Too few to say*, not "
    f"counted: fewer than {LEAST} successes, or an interval around the printed number more than {WIDE} times as wide as *close* (an MSE: "
    "down to 0). Iterations are over attacks that converged, and so are SSIM and MSE if any converged. *Holds, undecided at this n*: "
    "all our values agree with the claim and the intervals overlap in every case."
)
NOTHING = "The paper prints no number that we measured; see the claims."
EQUAL_READINGS = "The readings cannot be distinguished."
MARGIN = 0.1  # share of the numbers within which readings count as equal to the best
Spoken: TypeAlias = dict[tuple[int, str], tuple[str, str]]  # (line, measure) -> verdict and the cell behind it


def headlines(result: Result) -> tuple[str, ...]:
    """Return one sentence for each judged column of an item, or why there is none."""
    stand_in = scale_of(result.item, result.scale).stand_in
    if stand_in:
        return (f"Not compared with the paper: {stand_in}.",)
    counted = [(c.title, agreement(result.comparison.counts[c.title])) for c in _speaking(result)]
    sentences = [f"{title}: {words}" if len(counted) > 1 else words for title, words in counted if words]
    return tuple(sentences) or (NOTHING,)


def in_short(result: Result) -> str:
    """Return an item in one line: its only column, or the reading that fits best."""
    judged = _speaking(result)
    if len(judged) < 2:
        return " ".join(headlines(result))
    return best_reading(result.comparison) or f"{len(judged)} readings; {NOTHING[0].lower()}{NOTHING[1:]}"


def _speaking(result: Result) -> list[Column]:
    """Return the judged columns with a cell that no earlier column has."""
    seen: set[tuple[str, str]] = set()
    columns: list[Column] = []
    for column in result.comparison.columns:
        cells = {(cell.cell, repr(sorted(cell.where.items()))) for cell in result.cells if cell.column == column}
        if column.judged and cells - seen:
            columns.append(column)
            seen |= cells
    return columns or [column for column in result.comparison.columns if column.judged][:1]


def incomplete(result: Result) -> str:
    """Return which runs are missing or partial and which rows are of other settings; "" if complete."""
    sentences = [f"Not run: {', '.join(result.missing)}."] if result.missing else []
    parts = ", ".join(f"{name} ({words})" for name, words in result.partial.items())
    sentences += [f"Run in part: {parts}; each row says its n."] if parts else []
    unknown = sum(not cell.settings for cell in result.cells)
    if unknown:
        rows = "all rows" if unknown == len(result.cells) else f"{unknown} of {len(result.cells)} rows"
        sentences.append(f"Of {rows}: {NOT_RECORDED}.")
    sentences += [f"Left out, {words}." for words in earlier_rows(result.earlier)]
    return " ".join(sentences)


def earlier_rows(rows: Sequence[Measured]) -> list[str]:
    """Return how many rows are of an earlier setting, of which parts, and what differed."""
    parts: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = parts.setdefault(row.earlier, {})
        counts[row.part] = counts.get(row.part, 0) + 1
    return [
        f"{n} row{'s' * (n != 1)}{f' ({names})' if names else ''} of an earlier setting: {words.rstrip('.')}"
        for words, counts in parts.items()
        for n, names in [(sum(counts.values()), ", ".join(name for name in counts if name))]
    ]


def findings_to_show(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings to show; one without cases only if the claim has no other."""
    claims: dict[str, list[Finding]] = {}
    for finding in findings:
        claims.setdefault(finding.claim.says, []).append(finding)
    chosen: list[Finding] = []
    for same in claims.values():
        tested = [finding for finding in same if finding.word not in (UNTESTED, UNMEASURED)]
        empty = next((finding for finding in same if finding.unseen), same[0])
        chosen += tested or [replace(empty, column=Column("", ""), rule="")]
    return chosen


def commands_of(result: Result) -> str:
    """Return the commands that produced the rows of an item, and where they ran."""
    parts = set(result.runs) or {cell.part for cell in result.cells}
    owners = dict.fromkeys(home_of(result.item, part)[0].name for part in result.item.parts if part.name in parts)
    commands = "; ".join(f"leakscope paper run {name} --scale {result.scale}" for name in owners)
    where = ", ".join(result.facts[name] for name in ("device", "torch", "revision") if name in result.facts)
    return f"{commands} ({where})" if where else commands


def best_reading(comparison: Comparison) -> str:
    """Return which reading fits the paper best, among those with printed numbers in common; "" if there is only one."""
    spoken: dict[str, Spoken] = {}
    for column in comparison.columns:
        if column.judged:
            numbers = spoken.setdefault(column.reading, {})
            for number, line in enumerate(comparison.lines):
                cell = next((cell.cell or repr(cell) for cell in line.measured if cell.column == column), "")
                for (title, name), verdict in line.verdicts.items():
                    if title == column.title and verdict.word in (*JUDGED, TOO_FEW):
                        numbers[number, name] = (verdict.word, cell)
    sentences = [_best_of({name: spoken[name] for name in group}) for group in _overlapping(spoken)]
    return " ".join(sentence for sentence in sentences if sentence)


def _overlapping(spoken: Mapping[str, Spoken]) -> list[list[str]]:
    """Return the readings in groups that share printed numbers."""
    groups: list[list[str]] = []
    for name, numbers in spoken.items():
        shared = (group for group in groups if any(numbers.keys() & spoken[other].keys() for other in group))
        group = next(shared, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _best_of(spoken: Mapping[str, Spoken]) -> str:
    """Return the reading with most numbers that agree or are close, among numbers measured separately by all of them."""
    every = list(spoken.values())
    common = set.intersection(*(set(numbers) for numbers in every))
    both = [place for place in common if len({numbers[place][1] for numbers in every}) > 1]
    apart = [place for place in both if all(numbers[place][0] != TOO_FEW for numbers in every)]
    if len(spoken) < 2 or not apart:
        return ""
    alike = {name: sum(numbers[place][0] in ALIKE for place in apart) for name, numbers in spoken.items()}
    counts = ", ".join(f"{name} {number}" for name, number in alike.items())
    few = len(both) - len(apart)  # numbers that are too few to say under some reading
    counts += f"; {few} more {'is' if few == 1 else 'are'} too few to say" if few else ""
    winners = [name for name, number in alike.items() if number >= max(alike.values()) - MARGIN * len(apart)]
    best = EQUAL_READINGS if len(winners) == len(spoken) else f"Closest to the paper: {' and '.join(winners)}."
    return f"{best} Numbers that agree or are close, of {len(apart)} printed: {counts}."


def agreement(counts: Mapping[str, int]) -> str:
    """Return the verdicts of a column in one sentence.

    >>> agreement({"agrees": 3, "close": 1, "higher": 2, "too few to say": 5, "not measured here": 4})
    'Of 6 printed numbers that we measured 3 agree, 1 is close, 2 differ (2 of ours higher); 5 too few to say, 4 not measured here.'
    """
    total = sum(counts.get(word, 0) for word in JUDGED)
    rest = [f"{counts[word]} {word}" for word in (TOO_FEW, NO_SUCCESS, ABSENT, NOT_RUN) if counts.get(word)]
    if not total:
        return (", ".join(rest).capitalize() + ".") if rest else ""
    apart = [f"{counts[word]} of ours {word}" for word in (HIGHER, LOWER) if counts.get(word)]
    differ = counts.get(HIGHER, 0) + counts.get(LOWER, 0)
    parts = [
        f"{counts.get(AGREES, 0)} agree{'s' if counts.get(AGREES) == 1 else ''}",
        *([f"{counts[BY_CONTENT]} by content though not by convergence"] if counts.get(BY_CONTENT) else []),
        f"{counts.get(CLOSE_BY, 0)} {'is' if counts.get(CLOSE_BY) == 1 else 'are'} close",
        f"{differ} differ{'s' if differ == 1 else ''}" + (f" ({', '.join(apart)})" if apart else ""),
    ]
    head = f"Of {total} printed number{'s' if total != 1 else ''} that we measured {', '.join(parts)}"
    return f"{head}; {', '.join(rest)}." if rest else f"{head}."
