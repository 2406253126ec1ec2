"""The printed claims as tests on measured cells.

A check compares one measure. Its forms:

    of, than    the cells of `of` against those of `than`, all other axes equal:  of  (must_be)  times * than + by
    value       every cell against a number
    along       neighbours along an axis, all other axes equal
    within      the whole interval of every cell against -value and value: what shows that something is absent, such as a correlation
    than_measure  every cell against `times` another measure of its own + `by`; `minus` tests the gap to another cell (`gaps`)

`must_be` is lower, higher, at_least, at_most or within; along an axis falling, rising, not_falling or not_rising. A case holds when the
values do; it is sure when the 95 % intervals do not meet. A claim whose cases all hold and of which none is sure is not yet decided, but
for cases that cannot be sure: a value that may equal its bound and does, a number without an interval. Checks of one measure on the same
cells, such as a lower and an upper bound, are one case, sure when each is. Where a side has no number, such as the iterations of attacks
that never converged, there is no case, nor where two cells are over different attacks (SSIM of 17 successes and of 3); both are counted.

A claim holds only if every case it speaks of was measured: those of the cells that the item plans at scale full. Else it holds as far
as measured, and says of how many cases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.core.registry import lookup
from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import CONTENT, CONVERGENCE, NO_THRESHOLD, Measured
from leakscope_papers.differences import gaps_to
from leakscope_papers.items import Check, Claim
from leakscope_papers.measures import NONE, Value
from leakscope_papers.naming import Column, meets
from leakscope_papers.planned import PlannedCell
from leakscope_papers.published import Printed

HOLDS, PARTLY, FAILS, UNDECIDED = "holds", "holds in part", "does not hold", "undecided at this n"
UNMEASURED, UNTESTED, SO_FAR = "not measured", "not tested", "holds as far as measured"
HOLDS_OPEN, SO_FAR_OPEN = f"{HOLDS}, {UNDECIDED}", f"{SO_FAR}, {UNDECIDED}"
OVER_ALL = {"ssim": "ssim_all", "mse": "mse_all"}
Known: TypeAlias = Sequence[tuple[Mapping[str, Plain], Value]]


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of a check: in words, whether the values are as claimed, whether the intervals leave no doubt.

    `bounded` says whether there is an interval at all, `about` what is compared, `seen` whether both sides have a number, `even`
    whether the value is its bound itself, `alike` whether both sides are over the same attacks.
    """

    words: str
    holds: bool
    sure: bool
    bounded: bool = True
    about: str = ""
    seen: bool = True
    even: bool = False
    alike: bool = True

    @property
    def open(self) -> bool:
        """Return whether more trials could make the intervals part and have not."""
        return self.bounded and not self.sure and not self.even


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a claim for one column: a word, the cases behind it; `rule` says what counted as a success.

    `unseen` cases had no number to compare, `unlike` ones numbers over different attacks. `planned` is how many cases the claim speaks
    of; `whole` is False where not all of them were measured.
    """

    claim: Claim
    column: Column
    word: str
    cases: tuple[Case, ...] = ()
    rule: str = ""
    unseen: int = 0
    unlike: int = 0
    whole: bool = True
    planned: int = 0

    @property
    def told(self) -> str:
        """Return the finding in a sentence with its counts."""
        if self.word in (UNTESTED, UNMEASURED):
            why = self.claim.cannot or ("no attack has the number that is compared" if self.unseen else "")
            why = why or ("the cells are over different attacks" if self.unlike else "")
            return self.word + (f": {why}" if why else "")
        by = f" (success {self.rule})" if self.rule else ""
        held, sure = sum(case.holds for case in self.cases), [case.holds for case in self.cases if case.sure]
        beyond = f"{sum(sure)} for and {len(sure) - sum(sure)} against it beyond the intervals"
        told = [self._counts(held), beyond if any(case.bounded for case in self.cases) else "none has an interval"]
        even = sum(case.even for case in self.cases)
        told += [f"{even} at the bound itself"] if even and any(case.bounded for case in self.cases) else []
        told += [f"{self.unseen} more could not be compared for want of a number"] if self.unseen else []
        told += [f"{self.unlike} more are over different attacks and were not compared"] if self.unlike else []
        told += [] if self.whole or self.planned > len(self.cases) else ["the rest of the claim was not measured"]
        likely = f"; likely because {self.claim.likely}" if self.claim.likely and self.word in (PARTLY, FAILS) else ""
        return f"{self.word}{by}: {', '.join(told)}{likely}"

    def _counts(self, held: int) -> str:
        """Return how many cases hold, and of how many that the claim speaks of."""
        measured = len(self.cases)
        more = max(0, self.planned - measured - self.unseen - self.unlike)
        if held == measured and more:
            return f"{held} of {self.planned} cases"
        return f"{held} of {measured} cases hold" + (
            f" ({more} more {'was' if more == 1 else 'were'} not measured)" if more else ""
        )

    @property
    def against(self) -> tuple[str, ...]:
        """Return the cases that do not hold, in words."""
        return tuple(case.words for case in self.cases if not case.holds)


def examine(claim: Claim, cells: Sequence[Measured], column: Column, unmeasured: Sequence[Measured] = ()) -> Finding:
    """Return what the cells of one column say about a claim; `unmeasured` are cells without numbers that the item plans."""
    if not claim.checks:
        return Finding(claim, column, UNTESTED)
    judged = [cell for cell in cells if cell.column == column]
    axes = _varied(cells)
    by_check = [list(_cases(check, judged, axes)) for check in claim.checks]
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
    """Return how many cases a claim has in these cells, with or without numbers."""
    axes = _varied(cells)
    return len({case.about for check in claim.checks for case in _cases(check, cells, axes)})


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
    """Return the cases, those about the same as one: it holds when all do, and the first that fails speaks for it.

    Of those that hold, one that leaves doubt speaks before one that leaves none.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.about, []).append(case)
    return tuple(min(same, key=lambda case: (case.holds, case.holds and not case.open)) for same in groups.values())


def _varied(cells: Sequence[Measured]) -> set[str]:
    """Return the axes that tell these cells apart."""
    axes = {axis for cell in cells for axis in cell.where}
    return {axis for axis in axes if len({repr(cell.where.get(axis)) for cell in cells}) > 1}


def examine_both(
    claim: Claim, cells: Sequence[Measured], column: Column, unmeasured: Sequence[Measured] = ()
) -> list[Finding]:
    """Return the findings of a claim; one about success by the paper's rule, convergence, and by ours, content."""
    if not any(check.measure == CONVERGENCE for check in claim.checks):
        return [examine(claim, cells, column, unmeasured)]
    if not any(CONTENT in cell.values for cell in cells if cell.column == column):
        return [replace(examine(claim, cells, column, unmeasured), rule="by convergence")]
    checks = [replace(c, measure=CONTENT) if c.measure == CONVERGENCE else c for c in claim.checks]
    rules = {"by convergence": claim, "by content": replace(claim, checks=tuple(checks))}
    return [replace(examine(each, cells, column, unmeasured), claim=claim, rule=rule) for rule, each in rules.items()]


def unmeasured_cells(planned: Iterable[PlannedCell], cells: Sequence[Measured]) -> list[Measured]:
    """Return the planned cells that were not measured, without numbers.

    Which measures such a cell would have is read off the measured cell of its part, or else of the item, that shares most of its place.
    A measure that this cell cannot have (convergence without a threshold) is left out.
    """
    places = {(cell.column, _place(cell.where)) for cell in cells}
    return [
        Measured(plan.where, plan.column, 0, dict.fromkeys(_likely_measures(plan, cells), Value(NONE)), part=plan.part)
        for plan in planned
        if (plan.column, _place(plan.where)) not in places
    ]


def _likely_measures(plan: PlannedCell, cells: Sequence[Measured]) -> list[str]:
    siblings = [cell for cell in cells if cell.part == plan.part] or cells
    shared = dict(plan.where).items()
    nearest = max(siblings, key=lambda cell: sum(dict(cell.where).get(a) == v for a, v in shared), default=None)
    if nearest is None:
        return []
    return [name for name, value in nearest.values.items() if value.there or value.over != NO_THRESHOLD]


def _place(where: Mapping[str, Plain]) -> str:
    return repr(sorted((axis, repr(value)) for axis, value in where.items()))


def printed_cells(printed: Printed, column: Column) -> list[Measured]:
    """Return the printed numbers as if they were measured, without intervals: a paper's claims on its own table."""
    found: dict[str, tuple[Mapping[str, Plain], dict[str, Value]]] = {}
    for row in printed.rows:
        if row.value is not None:
            own = found.setdefault(repr(sorted(row.where.items())), (row.where, {}))
            own[1][row.measure] = Value(Estimate(row.value, math.nan, math.nan, 0, 0))
            if row.measure in OVER_ALL:  # print has one such number, and claims are tested on all attacks
                own[1].setdefault(OVER_ALL[row.measure], own[1][row.measure])
    return [Measured(where, column, 0, values) for where, values in found.values()]


def _cases(check: Check, cells: Sequence[Measured], axes: set[str]) -> Iterator[Case]:
    """Yield the cases of a check that can be seen in these cells; `axes` are those worth naming."""
    _check_form(check)
    if check.must_be == WITHIN:
        yield from _within(check, cells, axes)
        return
    known = [
        (cell.where, cell.values[check.measure])
        for cell in cells
        if check.measure in cell.values and meets(cell.where, check.where)
    ]
    known = known if check.minus is None else gaps_to(check.minus, known)
    if check.than_measure:
        others = [(cell.where, cell.values.get(check.than_measure)) for cell in cells]
        for where, ours in known:
            for _, theirs in (pair for pair in others if pair[0] is where and pair[1] is not None):
                target = _moved(theirs or ours, check.times, check.by)
                yield _case(check, check.must_be, _say(where, axes), ours, target, check.than_measure.replace("_", " "))
    elif check.along:
        yield from _along(check, known, axes)
    elif check.than is not None:
        yield from _pairs(check, known, axes)
    else:
        target = Value(Estimate(float(check.value or 0.0), math.nan, math.nan, 0, 0))
        for where, ours in known:
            if meets(where, check.of):
                yield _case(check, check.must_be, _say(where, axes), ours, target, "")


def _within(check: Check, cells: Sequence[Measured], axes: set[str]) -> Iterator[Case]:
    """Yield for every cell whether the whole interval of a measure lies within -value and value; undecided where it reaches beyond.

    Its ends are its own, or the measures `<name>_low` and `<name>_high` where a program gives these.
    """
    most = float(check.value or 0.0)
    for cell in cells:
        if check.measure in cell.values and meets(cell.where, check.where) and meets(cell.where, check.of):
            own, who = cell.values[check.measure].estimate, _say(cell.where, axes)
            low, high = (
                cell.values[name].estimate.value if (name := f"{check.measure}_{side}") in cell.values else end
                for side, end in (("low", own.low), ("high", own.high))
            )
            about, seen = f"{check.measure}: {who}, within", math.isfinite(low) and math.isfinite(high)
            holds, beyond = -most <= low and high <= most, low > most or high < -most
            words = f"{who or 'here'}: {own.value:.4g} [{low:.4g}, {high:.4g}] against {-most:.4g} to {most:.4g}"
            yield Case(words, seen and holds, holds or beyond, about=about, seen=seen)


def _pairs(check: Check, known: Known, axes: set[str]) -> Iterator[Case]:
    than = check.than or {}
    varied = {*check.of, *than, *check.ignoring}
    for where, ours in known:
        if not meets(where, check.of):
            continue
        for other, theirs in known:
            if meets(other, than) and _rest(where, varied) == _rest(other, varied) and other is not where:
                target = _moved(theirs, check.times, check.by)
                against = f"that of {_say(other, varied & axes)}"
                margin = _margin(check.times, check.by)
                yield _case(check, check.must_be, _say(where, axes), ours, target, against, margin)


def _along(check: Check, known: Known, axes: set[str]) -> Iterator[Case]:
    varied = {check.along, *check.ignoring}
    lines: dict[str, list[tuple[Any, Value, Mapping[str, Plain]]]] = {}
    for where, ours in known:
        if check.along in where:
            lines.setdefault(repr(_rest(where, varied)), []).append((where[check.along], ours, where))
    relation = lookup(TRENDS, check.must_be, "trend")
    for line in lines.values():
        ordered = sorted(line, key=lambda point: point[0])
        for (before, earlier, _), (_, later, where) in itertools.pairwise(ordered):
            against, margin = f"that at {check.along} {before}", _margin(1.0, check.by)
            yield _case(check, relation, _say(where, axes), later, _moved(earlier, 1.0, check.by), against, margin)


def _case(check: Check, must_be: str, who: str, ours: Value, target: Value, against: str, margin: str = "") -> Case:
    """Return one comparison; `against` says with what, `margin` by how much that was moved."""
    about = f"{check.measure}: {who}, {against}"
    relation = lookup(RELATIONS, must_be, "relation")
    if not ours.there or not target.there:
        return Case(who, False, False, about=about, seen=False)
    if (check.along or check.than is not None) and check.measure in OVER_ALL and (ours.of_some or target.of_some):
        return Case(who, False, False, about=about, seen=False, alike=False)
    mine, theirs = ours.estimate, target.estimate
    even = relation(theirs.value, theirs.value) and mine.value == theirs.value
    bounded = not math.isnan(mine.low) or not math.isnan(theirs.low)
    apart = _low(mine) > _high(theirs) or _low(theirs) > _high(mine)
    said = f"{who or 'here'}: {mine.value:.4g} against {theirs.value:.4g}" + (
        f" ({margin}{against})" if against else ""
    )
    return Case(said, relation(mine.value, theirs.value), apart and bounded, bounded, about, even=even)


def _moved(value: Value, times: float, by: float) -> Value:
    old = value.estimate
    low, mid, high = (times * each + by for each in (old.low, old.value, old.high))
    return Value(Estimate(mid, low, high, old.n, old.trials), value.over)


def _margin(times: float, by: float) -> str:
    """Return in words what `_moved` does to a value.

    >>> _margin(1.0, 0.0), _margin(0.9, 0.0), _margin(1.0, 0.1), _margin(1.0, -2.0)
    ('', '0.9 times ', '0.1 above ', '2 below ')
    """
    added = f"{abs(by):g} {'above' if by > 0 else 'below'} " if by else ""
    return added + (f"{times:g} times " if times != 1 else "")


def _low(estimate: Estimate) -> float:
    return estimate.value if math.isnan(estimate.low) else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.value if math.isnan(estimate.high) else estimate.high


def _rest(where: Mapping[str, Plain], varied: set[str]) -> list[tuple[str, str]]:
    return sorted((axis, repr(value)) for axis, value in where.items() if axis not in varied)


def _say(where: Mapping[str, Plain], only: set[str]) -> str:
    return " ".join(f"{axis} {value}" for axis, value in where.items() if axis in only)


def _check_form(check: Check) -> None:
    given = [check.than is not None, check.value is not None, bool(check.along), bool(check.than_measure)]
    if sum(given) != 1:
        raise InputError(f"a check of {check.measure} needs one of than, value and along, got {sum(given)} of them")
    if check.must_be == WITHIN and not (check.value is not None and check.value > 0 and check.minus is None):
        raise InputError(f"a check of {check.measure} that must be within needs a value above 0, got {check.value}")


WITHIN = "within"
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "lower": lambda a, b: a < b,
    "higher": lambda a, b: a > b,
    "at_least": lambda a, b: a >= b,
    "at_most": lambda a, b: a <= b,
}
TRENDS = {"falling": "lower", "rising": "higher", "not_rising": "at_most", "not_falling": "at_least"}
