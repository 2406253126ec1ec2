"""Limits of an audit: its time budget, and checks of numbers from users and captures."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass

from leakscope.core.errors import InputError

LEAST_ITERATIONS = 5
OVER, GRACE = 2.0, 10.0  # times its share of the budget, and seconds in any case, for the least iterations of an attack
PROBE = 3  # iterations of a second probe beyond those of the first
PROBE_ON_CUDA = 40  # there a step is recorded first, which takes as long as many played ones
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


def iterations_within(seconds: float, measure: Callable[[int], float], most: int, *, probe: int = PROBE) -> int:
    """Return how many iterations, at most `most`, take about `seconds`; `measure(n)` is what n iterations took.

    Two runs of few iterations are measured, `probe` apart: what the start costs is not charged to every iteration. At least
    `LEAST_ITERATIONS`; where these would take more than `OVER` times as long and more than `GRACE` seconds, the attack is
    not run, and the error says what to do.
    """
    if most <= LEAST_ITERATIONS:
        return most
    once = measure(1)
    longest = max(OVER * seconds, GRACE) / LEAST_ITERATIONS
    if once > longest and (once := measure(1)) > longest:  # the first start may have been what took long
        raise InputError(
            f"no time: an iteration takes about {once:.2g} s here and {LEAST_ITERATIONS} are the least, in {seconds:.2g} s; give it "
            "more minutes or fewer clients"
        )
    if once > seconds / LEAST_ITERATIONS:
        return LEAST_ITERATIONS
    if probe > PROBE:
        once = measure(1 + probe // 4)
    first = 1 if probe == PROBE else 1 + probe // 4
    more = measure(first + probe)
    each = max((more - once) / probe, more / (first + probe) / 10, 1e-6)
    fit = math.floor((seconds - once) / each)
    return max(LEAST_ITERATIONS, min(most, fit))


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
