"""The printed claims as tests on measured cells.

A check compares one measure. Three forms:

    of, than    the cells of `of` against those of `than`, all other axes equal:  of  (must_be)  times * than + by
    value       every cell against a number
    along       neighbours along an axis, all other axes equal

`must_be` is lower, higher, at_least or at_most; along an axis falling, rising, not_falling or not_rising. A case holds when the
values do; it is sure when the 95 % intervals do not meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.core.registry import lookup
from leakscope.experiments.papers.comparing import CONTENT, CONVERGENCE, Column, Measured
from leakscope.experiments.papers.items import Check, Claim
from leakscope.experiments.papers.measures import Value
from leakscope.experiments.papers.naming import meets
from leakscope.experiments.papers.published import Printed
from leakscope.metrics.interval import Estimate

HOLDS, PARTLY, FAILS, UNDECIDED = "holds", "holds in part", "does not hold", "undecided at this n"
UNMEASURED, UNTESTED = "not measured", "not tested"


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of a check: in words, whether the values are as claimed, whether the intervals leave no doubt."""

    words: str
    holds: bool
    sure: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a claim for one column: a word, the cases behind it; `rule` says what counted as a success."""

    claim: Claim
    column: Column
    word: str
    cases: tuple[Case, ...] = ()
    rule: str = ""

    @property
    def told(self) -> str:
        """Return the finding in a sentence with its counts."""
        if self.word in (UNTESTED, UNMEASURED):
            return self.word + (f": {self.claim.cannot}" if self.claim.cannot else "")
        by = f" (success {self.rule})" if self.rule else ""
        held, sure = sum(case.holds for case in self.cases), [case.holds for case in self.cases if case.sure]
        beyond = f"{sum(sure)} for and {len(sure) - sum(sure)} against it beyond the intervals"
        return f"{self.word}{by}: {held} of {len(self.cases)} cases hold, {beyond}"

    @property
    def against(self) -> tuple[str, ...]:
        """Return the cases that do not hold, in words."""
        return tuple(case.words for case in self.cases if not case.holds)


def examine(claim: Claim, cells: Sequence[Measured], column: Column) -> Finding:
    """Return what the cells of one column say about a claim."""
    if not claim.checks:
        return Finding(claim, column, UNTESTED)
    own = [cell for cell in cells if cell.column == column]
    found = [list(_cases(check, own)) for check in claim.checks]
    cases = tuple(case for each in found for case in each)
    if not cases or not all(found):
        return Finding(claim, column, UNMEASURED)
    held = sum(case.holds for case in cases)
    if held == len(cases):
        return Finding(claim, column, HOLDS, cases)
    if not any(case.sure for case in cases if not case.holds):
        return Finding(claim, column, UNDECIDED, cases)
    return Finding(claim, column, PARTLY if held else FAILS, cases)


def examine_both(claim: Claim, cells: Sequence[Measured], column: Column) -> list[Finding]:
    """Return the findings of a claim; one about success by the paper's rule, convergence, and by ours, content."""
    if not any(check.measure == CONVERGENCE for check in claim.checks):
        return [examine(claim, cells, column)]
    checks = [replace(c, measure=CONTENT) if c.measure == CONVERGENCE else c for c in claim.checks]
    found = {"by convergence": claim, "by content": replace(claim, checks=tuple(checks))}
    return [replace(examine(each, cells, column), claim=claim, rule=rule) for rule, each in found.items()]


def printed_cells(printed: Printed, column: Column) -> list[Measured]:
    """Return the printed numbers as if they were measured, without intervals: a paper's claims on its own table."""
    found: dict[str, tuple[Mapping[str, Plain], dict[str, Value]]] = {}
    for row in printed.rows:
        if row.value is not None:
            own = found.setdefault(repr(sorted(row.where.items())), (row.where, {}))
            own[1][row.measure] = Value(Estimate(row.value, math.nan, math.nan, 0, 0))
    return [Measured(where, column, 0, values) for where, values in found.values()]


def _cases(check: Check, cells: Sequence[Measured]) -> Iterator[Case]:
    """Yield the cases of a check that can be seen in these cells."""
    _check_form(check)
    known = [
        (cell.where, cell.values[check.measure].estimate)
        for cell in cells
        if check.measure in cell.values and cell.values[check.measure].there and meets(cell.where, check.where)
    ]
    if check.along:
        yield from _along(check, known)
    elif check.than is not None:
        yield from _pairs(check, known)
    else:
        target = Estimate(float(check.value or 0.0), math.nan, math.nan, 0, 0)
        for where, ours in known:
            if meets(where, check.of):
                yield _case(check.must_be, _say(where), ours, target, f"{check.value:g}")


def _pairs(check: Check, known: Sequence[tuple[Mapping[str, Plain], Estimate]]) -> Iterator[Case]:
    than = check.than or {}
    varied = {*check.of, *than, *check.ignoring}
    for where, ours in known:
        if not meets(where, check.of):
            continue
        for other, theirs in known:
            if meets(other, than) and _rest(where, varied) == _rest(other, varied) and other is not where:
                target = _moved(theirs, check.times, check.by)
                yield _case(check.must_be, _say(where), ours, target, f"that of {_say(other, varied)}")


def _along(check: Check, known: Sequence[tuple[Mapping[str, Plain], Estimate]]) -> Iterator[Case]:
    varied = {check.along, *check.ignoring}
    lines: dict[str, list[tuple[Any, Estimate, Mapping[str, Plain]]]] = {}
    for where, ours in known:
        if check.along in where:
            lines.setdefault(repr(_rest(where, varied)), []).append((where[check.along], ours, where))
    relation = lookup(TRENDS, check.must_be, "trend")
    for line in lines.values():
        ordered = sorted(line, key=lambda point: point[0])
        for (before, earlier, _), (_, later, where) in itertools.pairwise(ordered):
            yield _case(relation, _say(where), later, _moved(earlier, 1.0, check.by), f"that at {check.along} {before}")


def _case(must_be: str, who: str, ours: Estimate, target: Estimate, against: str) -> Case:
    holds = lookup(RELATIONS, must_be, "relation")(ours.value, target.value)
    apart = _low(ours) > _high(target) or _low(target) > _high(ours)
    known = not math.isnan(ours.low) or not math.isnan(target.low)
    return Case(f"{who}: {ours.value:.4g} against {target.value:.4g} ({against})", holds, apart and known)


def _moved(estimate: Estimate, times: float, by: float) -> Estimate:
    low, value, high = (times * each + by for each in (estimate.low, estimate.value, estimate.high))
    return Estimate(value, low, high, estimate.n, estimate.trials)


def _low(estimate: Estimate) -> float:
    return estimate.value if math.isnan(estimate.low) else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.value if math.isnan(estimate.high) else estimate.high


def _rest(where: Mapping[str, Plain], varied: set[str]) -> list[tuple[str, str]]:
    return sorted((axis, repr(value)) for axis, value in where.items() if axis not in varied)


def _say(where: Mapping[str, Plain], only: set[str] | None = None) -> str:
    return " ".join(f"{axis} {value}" for axis, value in where.items() if only is None or axis in only)


def _check_form(check: Check) -> None:
    given = [check.than is not None, check.value is not None, bool(check.along)]
    if sum(given) != 1:
        raise InputError(f"a check of {check.measure} needs one of than, value and along, got {sum(given)} of them")


RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "lower": lambda a, b: a < b,
    "higher": lambda a, b: a > b,
    "at_least": lambda a, b: a >= b,
    "at_most": lambda a, b: a <= b,
}
TRENDS = {"falling": "lower", "rising": "higher", "not_rising": "at_most", "not_falling": "at_least"}
