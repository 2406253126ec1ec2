"""The result of an item at a scale: measured rows, from runs or recorded files, beside the printed numbers.

Rows whose settings differ from the item's present ones are kept apart, with the difference.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope_papers.claims import Finding, examine_both, unmeasured_cells
from leakscope_papers.comparing import Comparison, Measured, compare
from leakscope_papers.differences import with_gains
from leakscope_papers.items import Item, choose_items, home_of
from leakscope_papers.planned import Settings, partly, planned_cells, present_hashes, wanted, what_differs
from leakscope_papers.records import Recorded, read_recorded, recorded_file
from leakscope_papers.runs import joined, read_part, run_exists, stands
from leakscope_papers.scales import SCALES, parts_at, run_directory, scale_of
from leakscope_papers.shared_rows import recorded_rows

MACHINE_FACTS = ("device", "torch", "revision")
FULL = SCALES[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An item at one scale: its runs by part, the comparison, and the findings on its claims."""

    item: Item
    scale: str
    runs: dict[str, Path]
    missing: tuple[str, ...]  # parts without a row
    cells: tuple[Measured, ...]
    comparison: Comparison
    findings: tuple[Finding, ...]
    facts: dict[str, str]  # of all parts, see `gathered_facts`
    partial: dict[str, str] = field(default_factory=dict)  # part -> how much of it is measured, if not all
    earlier: tuple[Measured, ...] = ()  # rows of other settings
    recorded: Recorded | None = None  # all rows as written to a file


def result_of(item: Item, scale: str, out: Path) -> Result | None:
    """Return the result of an item at a scale from the runs in a directory, None if there are none."""
    runs: dict[str, Path] = {}
    missing: list[str] = []
    rows: list[Measured] = []
    facts: dict[str, Mapping[str, str]] = {}
    settings: dict[str, Settings] = {}
    partial: dict[str, str] = {}
    for part in parts_at(item, scale):
        directory = run_directory(out, item, part, scale)
        if not run_exists(item, part, directory):
            missing.append(part.name)
            continue
        runs[part.name] = directory
        run = read_part(item, part, directory)
        rows += run.cells
        facts[part.name] = _undated(run.facts)
        settings |= run.settings
        whole = wanted(item, part, scale, functools.partial(stands, item, part))
        words = partly(run.done, whole, rows=bool(home_of(item, part)[1].program))
        partial |= {part.name: words} if words else {}
    if not runs:
        return None
    recorded = Recorded(item.name, scale, tuple(rows), settings)
    result = _assembled(item, recorded, gathered_facts(facts))
    return replace(result, runs=runs, missing=tuple(missing), partial=partial)


def recorded_result(item: Item, scale: str, out: Path | None = None) -> Result | None:
    """Return the result of an item at a scale from the recorded files of the papers or of a directory; None if there are none."""
    recorded = recorded_rows(item, scale, out)
    if recorded is None:
        return None
    facts = {row.part: _undated(row.source) for row in reversed(recorded.rows) if not row.earlier}
    result = _assembled(item, recorded, gathered_facts(facts))
    measured = Counter(cell.part for cell in result.cells)
    planned = Counter(plan.part for plan in planned_cells(item, scale))
    missing = tuple(part.name for part in parts_at(item, scale) if not measured[part.name] and not part.joins)
    partial = {part: words for part, n in measured.items() if (words := partly(n, planned[part], rows=True))}
    return replace(result, missing=missing, partial=partial)


def _undated(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if name not in ("date", "seconds", "trials")}


def _assembled(item: Item, recorded: Recorded, facts: dict[str, str]) -> Result:
    """Return the result of these rows: those of the present settings compared and examined, the others apart."""
    parts = dict.fromkeys(row.part for row in recorded.rows if row.settings and not row.earlier)
    present_settings = {part: present_hashes(item, part, recorded.scale) for part in parts}
    rows = [_with_standing(row, recorded, present_settings) for row in recorded.rows]
    joins = {part.name for part in item.parts if part.joins}
    present = [row for row in rows if not row.earlier]
    beside = [row for row in present if row.part in joins]
    cells = with_gains(item.gains, joined([row for row in present if row.part not in joins], beside))
    judged = not scale_of(item, recorded.scale).stand_in
    cells = cells if judged else [replace(cell, note="") for cell in cells]  # a note describes the part's own data
    comparison = compare(item, cells, judged=judged)
    findings = _findings(item, cells, comparison) if judged else ()
    earlier = tuple(row for row in rows if row.earlier)
    return Result(item, recorded.scale, {}, (), tuple(cells), comparison, findings, facts, {}, earlier, recorded)


def _findings(item: Item, cells: Sequence[Measured], comparison: Comparison) -> tuple[Finding, ...]:
    unmeasured = unmeasured_cells(planned_cells(item, FULL), cells)
    return tuple(
        finding
        for claim in item.claims
        for column in comparison.columns
        for finding in examine_both(claim, cells, column, unmeasured)
    )


def _with_standing(row: Measured, recorded: Recorded, present: Mapping[str, Mapping[str, Settings]]) -> Measured:
    """Return a row with the difference of its settings from its part's present ones, if any."""
    if row.earlier or not row.settings or row.settings in present[row.part]:
        return row
    return replace(row, earlier=what_differs(recorded.settings[row.settings], present[row.part]))


def gathered_facts(parts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the facts that all parts share; differing device, torch and revision are joined under the first of them.

    >>> gathered_facts({"cifar10": {"device": "H200", "torch": "2.11"}, "mnist": {"device": "cpu", "torch": "2.11"}})
    {'torch': '2.11', 'device': 'H200 (cifar10); cpu (mnist)'}
    """
    every = list(parts.values())
    if not every:
        return {}
    shared = {name: value for name, value in every[0].items() if all(facts.get(name) == value for facts in every)}
    apart = [name for name in MACHINE_FACTS if name not in shared and any(name in facts for facts in every)]
    if not apart:
        return shared
    machines: dict[str, list[str]] = {}
    for part, facts in parts.items():
        words = ", ".join(facts[name] for name in apart if name in facts) or "not known"
        machines.setdefault(words, []).append(part)
    return shared | {apart[0]: "; ".join(f"{words} ({', '.join(names)})" for words, names in machines.items())}


def results_in(out: Path | None, scale: str | None = None, names: list[str] | None = None) -> list[Result]:
    """Return a result for every item with runs in a directory, at the given scale or the largest available.

    Items without a run are read from a recorded file in the directory; without a directory, from the papers' own. Raises if there
    is nothing.
    """
    results = _results(scale, names, lambda item, size: _result_at(item, size, out))
    if results:
        return results
    at = f" at scale {scale}" if scale else ""
    if out is None:
        raise InputError(f"no result of these items is recorded{at}; see: leakscope paper status")
    raise _nothing_run(out, scale)


def results_of_runs(out: Path, scale: str | None = None, names: list[str] | None = None) -> list[Result]:
    """Return a result for every item with runs in a directory; recorded files are not read."""
    results = _results(scale, names, lambda item, size: result_of(item, size, out))
    if not results:
        raise _nothing_run(out, scale)
    return results


def recorded_in(out: Path, scale: str | None = None, names: list[str] | None = None) -> list[Recorded]:
    """Return the rows in the files ITEM.SCALE.json of a directory, as `leakscope paper record --out` writes them."""
    sizes = (scale,) if scale else SCALES
    files = {
        (item.name, size): recorded_file(item.name, size, out)
        for item in choose_items(names or ["all"])
        for size in sizes
    }
    return [read_recorded(path, *of) for of, path in files.items() if path.is_file()]


def _results(
    scale: str | None, names: list[str] | None, result_at: Callable[[Item, str], Result | None]
) -> list[Result]:
    results: list[Result] = []
    for item in choose_items(names or ["all"]):
        for size in (scale,) if scale else reversed(SCALES):
            result = result_at(item, size) if size in item.scales else None
            if result is not None:
                results.append(result)
                break
    return results


def _nothing_run(out: Path, scale: str | None) -> InputError:
    at = f" at scale {scale}" if scale else ""
    hint = f"leakscope paper run all --scale {scale or 'smoke'} --out {out}"
    return InputError(f"{out} holds no run of a paper's item{at}; first run: {hint}")


def _result_at(item: Item, scale: str, out: Path | None) -> Result | None:
    if out is not None and (result := result_of(item, scale, out)) is not None:
        return result
    return recorded_result(item, scale, out)
