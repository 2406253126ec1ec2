"""The printed claims as tests on measured cells (see `cases`).

A claim is undecided if all its cases hold but none is sure, except for cases that cannot be sure: a value equal to its allowed
bound, a number without an interval. A claim holds only if all cases planned at scale full were measured; otherwise it holds as
far as measured, with counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope_papers.cases import OVER_ALL, Case, cases_of
from leakscope_papers.comparing import CONTENT, CONVERGENCE, NO_THRESHOLD, Measured
from leakscope_papers.items import Claim
from leakscope_papers.measures import NONE, Value
from leakscope_papers.naming import Column
from leakscope_papers.planned import PlannedCell
from leakscope_papers.published import Printed

HOLDS, PARTLY, FAILS, UNDECIDED = "holds", "holds in part", "does not hold", "undecided at this n"
UNMEASURED, UNTESTED, SO_FAR = "not measured", "not tested", "holds as far as measured"
HOLDS_OPEN, SO_FAR_OPEN = f"{HOLDS}, {UNDECIDED}", f"{SO_FAR}, {UNDECIDED}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on a claim for one column, with its cases."""

    claim: Claim
    column: Column
    word: str
    cases: tuple[Case, ...] = ()
    rule: str = ""  # what counted as a success
    unseen: int = 0  # cases without a number
    unlike: int = 0  # cases over different attacks
    whole: bool = True  # all planned cases were measured
    planned: int = 0  # cases of the claim

    @property
    def sentence(self) -> str:
        """Return the finding as a sentence with its counts."""
        if self.word in (UNTESTED, UNMEASURED):
            why = self.claim.cannot or ("no attack has the number that is compared" if self.unseen else "")
            why = why or ("the cells are over different attacks" if self.unlike else "")
            return self.word + (f": {why}" if why else "")
        by = f" (success {self.rule})" if self.rule else ""
        held, sure = sum(case.holds for case in self.cases), [case.holds for case in self.cases if case.sure]
        beyond = f"{sum(sure)} for and {len(sure) - sum(sure)} against it beyond the intervals"
        words = [self._counts(held), beyond if any(case.bounded for case in self.cases) else "none has an interval"]
        even = sum(case.even for case in self.cases)
        words += [f"{even} at the bound itself"] if even and any(case.bounded for case in self.cases) else []
        words += [f"{self.unseen} more have no number to compare"] if self.unseen else []
        words += [f"{self.unlike} more are over different attacks and were not compared"] if self.unlike else []
        words += [] if self.whole or self.planned > len(self.cases) else ["the rest of the claim was not measured"]
        likely = f"; likely because {self.claim.likely}" if self.claim.likely and self.word in (PARTLY, FAILS) else ""
        return f"{self.word}{by}: {', '.join(words)}{likely}"

    def _counts(self, held: int) -> str:
        """Return how many cases hold, of how many."""
        measured = len(self.cases)
        more = max(0, self.planned - measured - self.unseen - self.unlike)
        if held == measured and more:
            return f"{held} of {self.planned} cases"
        return f"{held} of {measured} cases hold" + (
            f" ({more} more {'was' if more == 1 else 'were'} not measured)" if more else ""
        )

    @property
    def against(self) -> tuple[str, ...]:
        """Return the texts of the cases that do not hold."""
        return tuple(case.words for case in self.cases if not case.holds)


def examine(claim: Claim, cells: Sequence[Measured], column: Column, unmeasured: Sequence[Measured] = ()) -> Finding:
    """Return the finding of one column on a claim; `unmeasured` are planned cells without numbers."""
    if not claim.checks:
        return Finding(claim, column, UNTESTED)
    judged = [cell for cell in cells if cell.column == column]
    axes = _varied(cells)
    by_check = [list(cases_of(check, judged, axes)) for check in claim.checks]
    cases = _joined(case for each in by_check for case in each if case.seen)
    lost = {case.about: case.alike for each in by_check for case in each if not case.seen}
    unseen, unlike = sum(lost.values()), len(lost) - sum(lost.values())
    measured = {case.about for each in by_check for case in each}
    planned = _all_cases(claim, [*judged, *(cell for cell in unmeasured if cell.column == column)])
    whole = all(by_check) and len(measured) >= planned
    return Finding(
        claim, column, _word(cases, whole=whole), cases, "", unseen, unlike, whole, max(planned, len(measured))
    )


def _all_cases(claim: Claim, cells: Sequence[Measured]) -> int:
    """Return the number of a claim's cases in these cells, with or without numbers."""
    axes = _varied(cells)
    return len({case.about for check in claim.checks for case in cases_of(check, cells, axes)})


def _word(cases: Sequence[Case], *, whole: bool) -> str:
    if not cases:
        return UNMEASURED
    held, failed = sum(case.holds for case in cases), [case for case in cases if not case.holds]
    if not failed and any(case.open for case in cases) and not any(case.sure for case in cases):
        return HOLDS_OPEN if whole else SO_FAR_OPEN
    if not failed:
        return HOLDS if whole else SO_FAR
    if not any(case.sure or not case.bounded for case in failed):
        return UNDECIDED
    return PARTLY if held else FAILS


def _joined(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return one case for each subject: the first that fails, else the least certain."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.about, []).append(case)
    return tuple(min(same, key=lambda case: (case.holds, case.holds and not case.open)) for same in groups.values())


def _varied(cells: Sequence[Measured]) -> set[str]:
    """Return the axes on which these cells differ."""
    axes = {axis for cell in cells for axis in cell.where}
    return {axis for axis in axes if len({repr(cell.where.get(axis)) for cell in cells}) > 1}


def examine_both(
    claim: Claim, cells: Sequence[Measured], column: Column, unmeasured: Sequence[Measured] = ()
) -> list[Finding]:
    """Return the findings of a claim; claims on success are tested by convergence (the paper's rule) and by content (ours)."""
    if not any(check.measure == CONVERGENCE for check in claim.checks):
        return [examine(claim, cells, column, unmeasured)]
    if not any(CONTENT in cell.values for cell in cells if cell.column == column):
        return [replace(examine(claim, cells, column, unmeasured), rule="by convergence")]
    checks = [replace(c, measure=CONTENT) if c.measure == CONVERGENCE else c for c in claim.checks]
    rules = {"by convergence": claim, "by content": replace(claim, checks=tuple(checks))}
    return [replace(examine(each, cells, column, unmeasured), claim=claim, rule=rule) for rule, each in rules.items()]


def unmeasured_cells(planned: Iterable[PlannedCell], cells: Sequence[Measured]) -> list[Measured]:
    """Return the planned cells that were not measured, without numbers.

    Their measures are those of the measured cell of the same part (else item) that shares most axes, without those that such a
    cell cannot have (convergence without a threshold).
    """
    places = {(cell.column, _place(cell.where)) for cell in cells}
    likely: dict[tuple[str, str], dict[str, Value]] = {}  # the same for every column
    unmeasured = []
    for plan in planned:
        place = _place(plan.where)
        if (plan.column, place) in places:
            continue
        if (plan.part, place) not in likely:
            likely[plan.part, place] = dict.fromkeys(_likely_measures(plan, cells), Value(NONE))
        unmeasured.append(Measured(plan.where, plan.column, 0, likely[plan.part, place], part=plan.part))
    return unmeasured


def _likely_measures(plan: PlannedCell, cells: Sequence[Measured]) -> list[str]:
    siblings = [cell for cell in cells if cell.part == plan.part] or cells
    place = plan.where.items()
    nearest = max(siblings, key=lambda cell: sum(cell.where.get(a) == v for a, v in place), default=None)
    if nearest is None:
        return []
    return [name for name, value in nearest.values.items() if value.has_number or value.over != NO_THRESHOLD]


def _place(where: Mapping[str, Plain]) -> str:
    return repr(sorted((axis, repr(value)) for axis, value in where.items()))


def printed_cells(printed: Printed, column: Column) -> list[Measured]:
    """Return the printed numbers as measured cells without intervals, to test a paper's claims on its own table."""
    cells: dict[str, tuple[Mapping[str, Plain], dict[str, Value]]] = {}
    for row in printed.rows:
        if row.value is not None:
            _, values = cells.setdefault(repr(sorted(row.where.items())), (row.where, {}))
            values[row.measure] = Value(Estimate(row.value, math.nan, math.nan, 0, 0))
            if row.measure in OVER_ALL:  # one number is printed, and claims are tested on all attacks
                values.setdefault(OVER_ALL[row.measure], values[row.measure])
    return [Measured(where, column, 0, values) for where, values in cells.values()]
