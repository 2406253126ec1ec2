"""The time an audit may take, and how many iterations of an attack fit into a share of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from leakscope.audit.checking import positive_number
from leakscope.core.errors import InputError

LEAST_ITERATIONS = 5
OVER, GRACE = 2.0, 10.0  # times its share of the budget, and seconds in any case, for the least iterations of an attack
PROBE = 3
MOST_MINUTES = 24 * 60.0


@dataclass(frozen=True, slots=True)
class Budget:
    """A stretch of time that began at `began` and lasts `seconds`; `clock` tells the time."""

    seconds: float
    began: float
    clock: Callable[[], float] = time.monotonic

    @property
    def left(self) -> float:
        """Return the seconds that are left; 0 when there are none."""
        return max(0.0, self.began + self.seconds - self.clock())

    @property
    def used(self) -> float:
        """Return the seconds since it began."""
        return self.clock() - self.began


def start_budget(minutes: float, clock: Callable[[], float] = time.monotonic) -> Budget:
    """Return a budget that begins now."""
    return Budget(60 * positive_number(minutes, "minutes", MOST_MINUTES), clock(), clock)


def iterations_within(seconds: float, probe: Callable[[int], float], most: int) -> int:
    """Return how many iterations, at most `most`, take about `seconds`; `probe(n)` is what n iterations took.

    The probe runs twice with a few iterations: what the first start costs is not charged to every iteration. At least
    `LEAST_ITERATIONS`; where these would take more than `OVER` times as long and more than `GRACE` seconds, the attack is
    not run, and the error says what to do.
    """
    if most <= LEAST_ITERATIONS:
        return most
    once = probe(1)
    longest = max(OVER * seconds, GRACE) / LEAST_ITERATIONS
    if once > longest and (once := probe(1)) > longest:  # the first start may have been what took long
        raise InputError(
            f"no time: an iteration takes about {once:.2g} s here and {LEAST_ITERATIONS} are the least, in {seconds:.2g} s; give it "
            "more minutes or fewer clients"
        )
    if once > seconds / LEAST_ITERATIONS:
        return LEAST_ITERATIONS
    more = probe(1 + PROBE)
    each = max((more - once) / PROBE, more / (1 + PROBE) / 10, 1e-6)
    fit = math.floor((seconds - once) / each)
    return max(LEAST_ITERATIONS, min(most, fit))
