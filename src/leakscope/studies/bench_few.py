"""Whole attacks of few trials on one CPU thread: the engine beside the plain loop, both by CPU seconds.

CPU seconds hold on a busy machine. The engine is planned for all iterations of the attack; its seconds count everything from the
call (planning, measuring, tracing). An attack that takes longer than a window is stopped, and its remaining iterations count at
the pace of its later half.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import torch

from leakscope.attacks.engine.forms import TRACE_AFTER
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Stop
from leakscope.kernels.graph_cache import forget as forget_graphs
from leakscope.studies.bench_cases import Case, Setup, loop_attack, set_up

ITERATIONS = 1000
PAIRS = 3
WINDOW = 3.0  # CPU seconds of either side, from the engine's first evaluation
LEAST = TRACE_AFTER + 24  # evaluations of the engine at least: the later half is traced
LONGEST = 150.0  # CPU seconds of a case, after which no further pair begins


@dataclass(frozen=True, slots=True)
class FewTiming:
    """Timing of one case in trial-iterations per CPU second; the range of the ratio is over all pairs."""

    name: str
    iterations: int
    pairs: int
    loop_per_s: float
    engine_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    planning_share: float  # CPU seconds from the call to the first evaluation, over those of the attack

    @property
    def line(self) -> str:
        """Return the timing as one line."""
        return (
            f"{self.name:<14} loop {self.loop_per_s:>7.1f}  engine {self.engine_per_s:>7.1f} a CPU second  {self.ratio:.2f}x "
            f"({self.ratio_low:.2f} to {self.ratio_high:.2f}, n={self.pairs}, {self.iterations} iterations)  "
            f"planning {self.planning_share:.1%}"
        )


class _Watch:
    """Reads the CPU seconds before every evaluation, and ends a run after `window` seconds of evaluations."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.began = time.process_time()
        self.times: list[float] = []

    def __call__(self, evaluations: int) -> bool:
        self.times.append(time.process_time())
        return evaluations >= LEAST and self.times[-1] - self.times[0] > self.window

    def seconds(self, iterations: int) -> float:
        """Return the CPU seconds of all iterations; those not run count at the pace of the later half."""
        end, run = time.process_time(), len(self.times)
        if run >= iterations:
            return end - self.began
        middle = (run - 1) // 2
        each = (self.times[-1] - self.times[middle]) / (run - 1 - middle)
        return self.times[-1] - self.began + (iterations - run + 1) * each

    @property
    def planning(self) -> float:
        """Return the CPU seconds before the first evaluation."""
        return self.times[0] - self.began


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_few(case: Case, *, iterations: int = ITERATIONS, pairs: int = PAIRS, window: float = WINDOW) -> FewTiming:
    """Return the timing of one case."""
    with _one_thread():
        setup = set_up(case, "cpu")
        _loop_rate(setup, 0, 0.0)
        began, loops, engines, shares = time.process_time(), list[float](), list[float](), list[float]()
        while len(loops) < pairs and (not loops or time.process_time() - began < LONGEST):
            loops.append(_loop_rate(setup, len(loops) % len(setup.seeds), window))
            rate, share = _engine_rate(case, setup, iterations, window)
            engines.append(rate)
            shares.append(share)
    ratios = [engine / loop for engine, loop in zip(engines, loops, strict=True)]
    return FewTiming(
        case.name,
        iterations,
        len(loops),
        median(loops),
        median(engines),
        median(ratios),
        min(ratios),
        max(ratios),
        median(shares),
    )


def _loop_rate(setup: Setup, trial: int, window: float) -> float:
    """Return the iterations per CPU second of the plain loop on one trial."""
    began, run, count = time.process_time(), 0, 2
    while True:
        loop_attack(setup, trial, "cpu", count, False)
        run += count
        if (used := time.process_time() - began) >= window:
            return run / used
        count = max(2, min(round((window - used) * run / used), 4 * run))


def _engine_rate(case: Case, setup: Setup, iterations: int, window: float) -> tuple[float, float]:
    """Return the trial-iterations per CPU second of a whole attack of the engine, and the share of its planning."""
    attack = replace(case.matching, stop=Stop(iterations=iterations))
    forget_graphs()  # every attack pays for its tracing, as the first of a process
    watch = _Watch(window)
    execution = Execution(chunk=len(setup.seeds), out_of_time=watch)
    attack.run(setup.model, setup.observation, setup.knowledge, setup.seeds, execution)
    seconds = watch.seconds(iterations)
    return len(setup.seeds) * iterations / seconds, watch.planning / seconds
