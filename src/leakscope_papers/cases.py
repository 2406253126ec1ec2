"""The cases of a check: each compares measured cells in one measure.

The forms of a check:

    of, than    the cells of `of` against those of `than`, all other axes equal:  of  (must_be)  times * than + by
    value       every cell against a number
    along       neighbours along an axis, all other axes equal
    within      the whole interval of every cell against -value and value, to show that an effect such as a correlation is absent
    than_measure  every cell against `times` another of its measures + `by`; `minus` tests the gap to another cell (`gaps`)

`must_be` is lower, higher, at_least, at_most or within; along an axis falling, rising, not_falling or not_rising. A case holds if
the values do, and is sure if the 95 % intervals do not overlap. Checks of one measure on the same cells, such as two bounds, are
one case, sure if each is. Sides without a number (iterations of attacks that never converged) and sides over different attacks
(SSIM of 17 successes and of 3) are counted but not compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.core.registry import lookup
from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import Measured
from leakscope_papers.differences import gaps_to
from leakscope_papers.items import Check
from leakscope_papers.measures import Value
from leakscope_papers.naming import meets

OVER_ALL = {"ssim": "ssim_all", "mse": "mse_all"}
Known: TypeAlias = Sequence[tuple[Mapping[str, Plain], Value]]


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of a check: its text, whether the values are as claimed, whether the intervals leave no doubt."""

    words: str
    holds: bool
    sure: bool
    bounded: bool = True  # has an interval
    about: str = ""  # what is compared
    seen: bool = True  # both sides have a number
    even: bool = False  # the value equals its bound
    alike: bool = True  # both sides are over the same attacks

    @property
    def open(self) -> bool:
        """Return whether more trials could separate the intervals."""
        return self.bounded and not self.sure and not self.even


def cases_of(check: Check, cells: Sequence[Measured], axes: set[str]) -> Iterator[Case]:
    """Yield the cases of a check on these cells; `axes` are the ones to name in their text."""
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
    """Yield for every cell whether a measure's interval (or `<name>_low`, `<name>_high`) lies within +-value; undecided if it overlaps."""
    most = float(check.value or 0.0)
    for cell in cells:
        if check.measure in cell.values and meets(cell.where, check.where) and meets(cell.where, check.of):
            estimate, who = cell.values[check.measure].estimate, _say(cell.where, axes)
            low, high = (
                cell.values[name].estimate.value if (name := f"{check.measure}_{side}") in cell.values else end
                for side, end in (("low", estimate.low), ("high", estimate.high))
            )
            about, seen = f"{check.measure}: {who}, within", math.isfinite(low) and math.isfinite(high)
            holds, beyond = -most <= low and high <= most, low > most or high < -most
            words = (
                f"{who}: " * bool(who)
                + f"{estimate.value:.4g} [{low:.4g}, {high:.4g}] against {-most:.4g} to {most:.4g}"
            )
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
    lines: dict[str, list[tuple[Mapping[str, Plain], Value]]] = {}
    for where, ours in known:
        if check.along in where:
            lines.setdefault(repr(_rest(where, varied)), []).append((where, ours))
    relation = lookup(TRENDS, check.must_be, "trend")
    for line in lines.values():
        ordered = sorted(line, key=lambda point: cast(float, point[0][check.along]))
        for (before, earlier), (where, later) in itertools.pairwise(ordered):
            against, margin = f"that at {check.along} {before[check.along]}", _margin(1.0, check.by)
            yield _case(check, relation, _say(where, axes), later, _moved(earlier, 1.0, check.by), against, margin)


def _case(check: Check, must_be: str, who: str, ours: Value, target: Value, against: str, margin: str = "") -> Case:
    """Return one comparison; `against` names the other side, `margin` how it was shifted."""
    about = f"{check.measure}: {who}, {against}"
    relation = lookup(RELATIONS, must_be, "relation")
    if not ours.has_number or not target.has_number:
        return Case(who, False, False, about=about, seen=False)
    if (check.along or check.than is not None) and check.measure in OVER_ALL and (ours.of_some or target.of_some):
        return Case(who, False, False, about=about, seen=False, alike=False)
    mine, theirs = ours.estimate, target.estimate
    even = relation(theirs.value, theirs.value) and mine.value == theirs.value
    bounded = not math.isnan(mine.low) or not math.isnan(theirs.low)
    apart = _low(mine) > _high(theirs) or _low(theirs) > _high(mine)
    words = (
        f"{who}: " * bool(who)
        + f"{mine.value:.4g} against {theirs.value:.4g}"
        + (f" ({margin}{against})" if against else "")
    )
    return Case(words, relation(mine.value, theirs.value), apart and bounded, bounded, about, even=even)


def _moved(value: Value, times: float, by: float) -> Value:
    old = value.estimate
    low, mid, high = (times * each + by for each in (old.low, old.value, old.high))
    return Value(Estimate(mid, low, high, old.n, old.trials), value.over)


def _margin(times: float, by: float) -> str:
    """Return what `_moved` does to a value, in words.

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
