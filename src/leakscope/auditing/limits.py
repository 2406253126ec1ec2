"""Limits of an audit: its time budget, and checks of numbers from users and captures."""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from leakscope.core.differentiate import load_transforms
from leakscope.core.errors import InputError
from leakscope.core.errors import first_line as first_line
from leakscope.core.progress import Reporter

LEAST_ITERATIONS = 5  # an attack with at most so many is run without measuring its pace
MOST_MINUTES = 24 * 60.0
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Budget:
    """A time budget of `seconds` from `began` on the given `clock`."""

    seconds: float
    began: float
    clock: Callable[[], float] = time.monotonic

    @property
    def left(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self.end - self.clock())

    @property
    def end(self) -> float:
        """Return when it is over, on its clock."""
        return self.began + self.seconds

    @property
    def used(self) -> float:
        """Return the seconds used."""
        return self.clock() - self.began


def start_budget(minutes: float, clock: Callable[[], float] = time.monotonic) -> Budget:
    """Return a budget that starts now."""
    return Budget(60 * positive_number(minutes, "minutes", MOST_MINUTES), clock(), clock)


def after_loading(budget: Budget, report: Reporter) -> Budget:
    """Return the budget from now on, after loading code, which is not its time."""
    load_transforms(report)
    return replace(budget, began=budget.clock())


@dataclass(slots=True)
class Pace:
    """Times of a run's evaluations. As `Execution.out_of_time` it ends the run if the next would end after `until`, or after `most`.

    It never ends before `least` evaluations.
    """

    clock: Callable[[], float] = time.monotonic
    until: float = math.inf
    most: float = math.inf
    least: int = 0
    reports: list[tuple[float, int]] = field(default_factory=list)  # (time, evaluations before it)
    ended: bool = False  # whether it ended the run

    def overhead(self, began: float) -> float:
        """Return the seconds from `began` to the first evaluation (labels, exact steps, a prediction of memory); 0 if there was none."""
        before = itertools.takewhile(lambda report: report[1] == self.reports[0][1], self.reports)
        return max((time for time, _ in before), default=began) - began

    def __call__(self, evaluations: int) -> bool:
        """Record the time; return whether the run ends here."""
        now = self.clock()
        before = self.reports[-1] if self.reports else (now, evaluations)
        each = (now - before[0]) / (evaluations - before[1]) if evaluations > before[1] else 0.0
        self.reports.append((now, evaluations))
        over = evaluations >= self.least and (now + each > self.until or evaluations >= self.most)
        self.ended = self.ended or over
        return over

    @property
    def seconds(self) -> float | None:
        """Return the seconds per evaluation, summed over chunks; None if there was none."""
        ends = [place for place, (_, at) in enumerate(self.reports[1:], 1) if at < self.reports[place - 1][1]]
        chunks = [self.reports[a:b] for a, b in itertools.pairwise([0, *ends, len(self.reports)])]
        each = [_slope(chunk) for chunk in chunks if chunk]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * len(each) / len(known) if known else None


def _slope(reports: Sequence[tuple[float, int]]) -> float | None:
    """Return seconds per evaluation over the later half, which is warm; None if there was none."""
    end, last = reports[-1]
    began, first = [each for each in reports if each[1] <= last / 2][-1]
    return (end - began) / (last - first) if last > first else None


def whole_number(value: object, what: str, low: int, high: int) -> int:
    """Return a whole number in low..high; booleans are refused.

    >>> whole_number(3.0, "examples", 1, 8)
    3
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InputError(f"{what} must be a whole number, got {_shown(value)}")
    if not low <= number <= high:
        raise InputError(f"{what} must lie in {low}..{_power(high)}, got {_shown(number)}")
    return number


def positive_number(value: object, what: str, high: float) -> float:
    """Return a number in (0, high]; booleans are refused.

    >>> positive_number(2, "minutes", 60.0)
    2.0
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= high:
        raise InputError(f"{what} must be a number in (0, {high:g}], got {_shown(value)}")
    return number


def check_numbers(clients: object, seed: object) -> tuple[int, int]:
    """Return the number of clients and the seed, checked."""
    return whole_number(clients, "clients", 1, MOST), whole_number(seed, "seed", 0, MOST)


def spoken(value: object) -> object:
    """Return the number that a string spells; any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _power(high: int) -> str:
    return "2**31 - 1" if high == MOST else f"{high}"
