"""The README of a paper, generated from its recorded results: claims, printed and our numbers, what was not reproduced, how to rerun."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope_papers.claims import UNMEASURED, UNTESTED, Finding, examine, printed_cells
from leakscope_papers.comparing import ABSENT, AGREES, BY_CONTENT, CLOSE_BY, HIGHER, LOWER, NOT_RECORDED, NOT_RUN
from leakscope_papers.headlines import HOW, best_reading, earlier_rows, findings_to_show
from leakscope_papers.items import Item, choose_items, read_item
from leakscope_papers.naming import Column
from leakscope_papers.notes import Notes, filled, read_notes
from leakscope_papers.pages.table import reasons_of
from leakscope_papers.planned import planned_cells
from leakscope_papers.registry import papers
from leakscope_papers.results import Result, recorded_result
from leakscope_papers.scales import scale_of

README = "README.md"
MOST_LINES = 300
MOST_REASONS = 12  # of differences, the most frequent first
MOST_NAMED = 2  # attackers, rules or readings that a verdict names
NO_NUMBER = "no number"


def rendered(paper: str) -> str:
    """Return the README of a paper as Markdown; raises if it is too long."""
    folder = papers()[paper]
    results = [_find(item.name, None) for item in choose_items([paper]) if _recorded(item.name)]
    notes = read_notes(folder)
    lines = [*_head(paper, notes, results), *_items(paper, results), *_claims(results)]
    lines += [*_not_reproduced(notes, results), *_again(paper, notes, results)]
    if len(lines) > MOST_LINES:
        raise InputError(f"{folder / README} would have {len(lines)} lines, at most {MOST_LINES} are allowed")
    return "\n".join(lines) + "\n"


def readme_file(paper: str) -> Path:
    """Return the path of a paper's README."""
    return papers()[paper] / README


@functools.cache
def _recorded(name: str) -> Mapping[str, Result]:
    """Return scale -> recorded result of an item, the scale with most rows first."""
    item = read_item(name)
    every = {scale: recorded_result(item, scale) for scale in item.scales}
    results = {scale: result for scale, result in every.items() if result is not None}
    return dict(sorted(results.items(), key=lambda pair: -len(pair[1].cells)))


def _find(name: str, scale: str | None) -> Result:
    results = _recorded(name)
    if not results or (scale is not None and scale not in results):
        raise InputError(f"no result of {name} is recorded" + (f" at scale {scale}" if scale else ""))
    return results[scale] if scale else next(iter(results.values()))


def _head(paper: str, notes: Notes | None, results: Sequence[Result]) -> list[str]:
    rows = [cell for result in results for cell in result.cells]
    unknown = sum(not cell.settings for cell in rows)
    lines = [f"# {notes.title if notes else paper}", ""]
    lines += [f"Made by `leakscope paper render {paper}` from `results/*.json`; edit `notes.yaml`, not this page.", ""]
    lines += ["## What the paper claims", "", " ".join(notes.claims.split()), ""] if notes else []
    lines += ["## What we found", ""]
    lines += [f"- {filled(sentence, _find)}" for sentence in (notes.found if notes else ())]
    lines += [
        "",
        f"{len(rows):,} rows were measured" + f"; {NOT_RECORDED} for {unknown:,} of them" * bool(unknown) + ".",
    ]
    return [*lines, "", HOW, ""]


def _items(paper: str, results: Sequence[Result]) -> list[str]:
    lines = ["## Printed and measured numbers", ""]
    lines += ["| item | what | scale | rows | printed numbers | missing |", "|---|---|---|---|---|---|"]
    for item in choose_items([paper]):
        head = [item.name.removeprefix(f"{paper}-"), item.printed.title]
        lines += [
            markdown_row([*head, *_item_cells(item, result)]) for result in _recorded(item.name).values() or (None,)
        ]
    earlier = [f"- {result.item.name}: {words}" for result in results for words in earlier_rows(result.earlier)]
    if earlier:
        lines += ["", "Recorded with earlier settings, and not shown above:", "", *earlier]
    best = [f"- {result.item.name}: {words}" for result in results if (words := best_reading(result.comparison))]
    return [*lines, *(["", "If a paper can be read in several ways:", "", *best] if best else []), ""]


def _item_cells(item: Item, result: Result | None) -> list[str]:
    """Return scale, rows, verdicts on the printed numbers and what is missing, as text."""
    if result is None:
        return ["", "none", "", "not run"]
    planned = len(planned_cells(item, result.scale))
    numbers = _numbers(result)
    missing = [f"not run: {', '.join(result.missing)}"] if result.missing else []
    left_out = scale_of(item, result.scale).leave_out
    missing += [f"left out at this scale: {', '.join(left_out)}"] if left_out else []
    missing += [f"{measure}: {why}" for measure, why in item.absent.items()]
    return [result.scale, f"{len(result.cells)} of {planned}", numbers, "; ".join(missing)]


def _numbers(result: Result) -> str:
    """Return the verdicts of the first judged column that has any."""
    if not result.item.printed.rows:
        return NO_NUMBER
    counts = next((counts for counts in result.comparison.counts.values() if counts), {})
    words = {AGREES: "agree", BY_CONTENT: "by content", CLOSE_BY: "close", HIGHER: "ours higher", LOWER: "ours lower"}
    words |= {ABSENT: ABSENT, NOT_RUN: NOT_RUN}
    return ", ".join(f"{counts[name]} {word}" for name, word in words.items() if counts.get(name)) or NO_NUMBER


def _claims(results: Sequence[Result]) -> list[str]:
    lines = ["## Claims", "", "*Printed* counts the cases that hold on the paper's own numbers, *ours* shows one case."]
    lines += ["`leakscope paper report --recorded` shows every case.", ""]
    lines += ["| claim | printed | ours, n | verdict |", "|---|---|---|---|"]
    for result in results:
        name = result.item.name.partition("-")[2]
        for claim_findings in _by_claim(findings_to_show(result.findings)):
            lines.append(
                markdown_row([f"{name}: {claim_findings[0].claim.says}", *_claim_cells(result, claim_findings)])
            )
    return [*lines, ""]


def _by_claim(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    claims: dict[str, list[Finding]] = {}
    for finding in findings:
        claims.setdefault(finding.claim.says, []).append(finding)
    yield from claims.values()


def _claim_cells(result: Result, findings: Sequence[Finding]) -> list[str]:
    """Return how a claim stands in the printed numbers, one measured case, and the verdict."""
    first = next((finding for finding in findings if finding.column.judged and finding.cases), findings[0])
    verdict = _verdict(findings)
    reported = [row for row in (result.recorded.reported if result.recorded else ()) if row[0] == first.claim.says]
    if first.word == UNMEASURED and reported:
        verdict = f"rows not recorded; when run: {_short(reported[0][2])}"
    return [_printed(result.item, first), _ours(result, first), verdict]


def _printed(item: Item, finding: Finding) -> str:
    """Return how many of the claim's cases hold on the printed numbers."""
    column = Column("", "")
    printed = examine(finding.claim, printed_cells(item.printed, column), column)
    if not printed.cases:
        return NO_NUMBER
    held = sum(case.holds for case in printed.cases)
    return f"{held} of {len(printed.cases)}"


def _ours(result: Result, finding: Finding) -> str:
    if not finding.cases:
        return ""
    example = next((case for case in finding.cases if not case.holds), finding.cases[0])
    measures = {check.measure for check in finding.claim.checks}
    cells = [cell for cell in result.cells if cell.column == finding.column and measures & set(cell.values)]
    sizes = sorted({cell.trials for cell in cells})
    n = f"n {sizes[0]}" if len(sizes) == 1 else f"n {sizes[0]} to {sizes[-1]}" if sizes else ""
    return ", ".join(word for word in (example.words, n) if word)


def _verdict(findings: Sequence[Finding]) -> str:
    """Return the verdicts; if they differ, each with the attackers, rules or readings that set it apart, or their number."""
    verdicts: dict[str, list[Finding]] = {}
    for finding in findings:
        verdicts.setdefault(finding.word, []).append(finding)
    if len(verdicts) == 1 or set(verdicts) <= {UNTESTED, UNMEASURED}:
        return _short(findings[0].sentence)
    facets = [
        [(each.column.attacker, each.rule, each.column.reading)[place] for each in findings] for place in range(3)
    ]
    words = [each.word for each in findings]
    where = {word: _where(word, words, facets) for word in verdicts}
    named = [f"{word} ({' and '.join(values)})" for word, values in where.items() if values]
    counted = [f"{word} in {words.count(word)}" for word, values in where.items() if not values]
    return "; ".join([*named, *([f"{', '.join(counted)} of {len(words)} columns"] if counted else [])])


def _where(word: str, words: Sequence[str], facets: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the values of the first facet that occur under this verdict only, () if there are none or too many.

    >>> _where("holds", ["holds", "fails"], [["knows", "knows"], ["by content", "by convergence"]])
    ('by content',)
    >>> _where("holds", ["holds", "fails", "holds"], [["a", "a", "b"]])
    ()
    """
    for values in facets:
        mine = {value: None for value, each in zip(values, words, strict=True) if each == word}
        rest = {value for value, each in zip(values, words, strict=True) if each != word}
        if len(mine) <= MOST_NAMED and not rest & set(mine) and all(mine):
            return tuple(mine)
    return ()


def _short(sentence: str) -> str:
    """Return a finding with only its first count.

    >>> _short("does not hold (success by content): 0 of 6 cases hold (2 more were not measured), 0 for and 6 against it")
    'does not hold (success by content): 0 of 6, 2 not measured'
    """
    head = sentence.partition("; likely because")[0].partition(". Against")[0].replace("none has an", "no")
    head = head.partition(" for and ")[0].rpartition(",")[0] if " for and " in head else head
    counts = re.sub(r" \((\d+) more (?:was|were) not measured\)", r", \1 not measured", head)
    return re.sub(r"(of \d+) cases(?: hold)?", r"\1", counts)


def _not_reproduced(notes: Notes | None, results: Sequence[Result]) -> list[str]:
    lines = ["## What we could not reproduce, and why", ""]
    lines += [f"- {filled(sentence, _find)}" for sentence in (notes.not_reproduced if notes else ())]
    reasons: dict[str, int] = {}
    for result in results:
        for reason, numbers in reasons_of(result).items():
            reasons[reason] = reasons.get(reason, 0) + len(numbers)
    ranked = sorted(reasons.items(), key=lambda pair: -pair[1])
    if ranked:
        lines += ["", "Likely reasons of numbers that differ, and of how many:", ""]
        lines += [f"- {reason} ({n})" for reason, n in ranked[:MOST_REASONS]]
    return [*lines, ""]


def _again(paper: str, notes: Notes | None, results: Sequence[Result]) -> list[str]:
    lines = ["## Run it again", "", "```sh", f"leakscope paper run {paper} --scale small --device cuda"]
    lines += ["leakscope paper record --scale small", f"leakscope paper render {paper}", "```", ""]
    lines += [filled(notes.again, _find), ""] if notes and notes.again else []
    machines = sorted({words for result in results for cell in result.cells if (words := _machine(cell.source))})
    return [*lines, f"Rows were measured on: {'; '.join(machines)}."] if machines else lines


def _machine(source: object) -> str:
    facts = dict(source) if isinstance(source, dict) else {}
    device = ", ".join(part for part in re.split(r", ?", str(facts.get("device", ""))) if part not in ("", "not known"))
    torch = f"torch {str(facts['torch']).partition('+')[0]}" if "torch" in facts else ""
    return ", ".join(word for word in (device, torch) if word)


def markdown_row(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"
