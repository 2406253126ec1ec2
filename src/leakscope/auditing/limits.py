"""Limits of an audit: its time budget, and checks of numbers from users and captures."""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leakscope.attacks.engine.state import Progress
from leakscope.core.errors import InputError

LEAST_ITERATIONS = 5
OVER, GRACE = 2.0, 10.0  # times its share of the budget, and seconds in any case, for the least iterations of an attack
PROBE = 3  # iterations of a second probe beyond those of the first
PROBE_SECONDS = 2.0  # of a run on a CUDA device whose pace is measured, once its ticks are recorded
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
        return max(0.0, self.began + self.seconds - self.clock())

    @property
    def used(self) -> float:
        """Return the seconds used."""
        return self.clock() - self.began


def start_budget(minutes: float, clock: Callable[[], float] = time.monotonic) -> Budget:
    """Return a budget that starts now."""
    return Budget(60 * positive_number(minutes, "minutes", MOST_MINUTES), clock(), clock)


def iterations_within(seconds: float, probe: Callable[[int], float], most: int) -> int:
    """Return how many iterations in `LEAST_ITERATIONS`..`most` fit into `seconds`; `probe(n)` returns the run time of n."""
    if most <= LEAST_ITERATIONS:
        return most
    once = probe(1)
    longest = max(OVER * seconds, GRACE) / LEAST_ITERATIONS
    if once > longest and (once := probe(1)) > longest:  # the first call includes start-up costs
        raise InputError(
            f"no time: an iteration takes about {once:.2g} s here and {LEAST_ITERATIONS} are the least, in {seconds:.2g} s; give it "
            "more minutes or fewer clients"
        )
    if once > seconds / LEAST_ITERATIONS:
        return LEAST_ITERATIONS
    more = probe(1 + PROBE)  # the difference to the first probe excludes the start-up cost
    each = max((more - once) / PROBE, more / (1 + PROBE) / 10, 1e-6)
    return iterations_at(each, seconds - once, most)


def iterations_at(pace: float, seconds: float, most: int) -> int:
    """Return how many iterations of `pace` seconds each fit into `seconds`, in `LEAST_ITERATIONS`..`most`.

    >>> iterations_at(0.1, 20.0, 300), iterations_at(0.1, 90.0, 300)
    (200, 300)
    """
    return max(LEAST_ITERATIONS, min(most, math.floor(seconds / pace)))


class OutOfTimeError(Exception):
    """A batch ran past its deadline; its partial result is lost."""


@dataclass(slots=True)
class Pace:
    """The pace of a batch: (seconds, iteration) reports of the engine; the run ends when `clock` passes `until`."""

    clock: Callable[[], float] = time.monotonic
    until: float = math.inf
    reports: list[tuple[float, int]] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Return whether the reports span `PROBE_SECONDS` after the first few iterations, which set the run up."""
        later = [at for at, iteration in self.reports if iteration > 2]
        return bool(later) and later[-1] - later[0] > PROBE_SECONDS

    def hear(self, progress: Progress) -> None:
        """Record the iteration of the slowest trial."""
        self.reports.append((self.clock(), progress.iteration))
        if self.reports[-1][0] > self.until:
            raise OutOfTimeError

    @property
    def seconds(self) -> float | None:
        """Return the seconds per iteration, summed over chunks; None if there are too few reports."""
        ends = [place for place, (_, at) in enumerate(self.reports[1:], 1) if at < self.reports[place - 1][1]]
        chunks = [self.reports[a:b] for a, b in itertools.pairwise([0, *ends, len(self.reports)])]
        each = [_slope(chunk) for chunk in chunks if chunk]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * len(each) / len(known) if known else None


def _slope(reports: Sequence[tuple[float, int]]) -> float | None:
    """Return seconds per iteration over the later half, after tracing; None if nothing moved."""
    end, last = reports[-1]
    began, first = next(each for each in reports if each[1] >= last / 2)
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _power(high: int) -> str:
    return "2**31 - 1" if high == MOST else f"{high}"
