"""What honest models have, measured over fresh, trained, pruned, quantised and fine-tuned networks; limits follow from it.

`reference.json` is written by `python benchmarks/scan.py --write`: for every test, and for tests on a batch also its size, the number
of models, median, 99th percentile, largest value and limit.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from importlib.resources import files

from leakscope.scanning.findings import ABOUT, Honest, Reading, ScanLine, Test, Verdict

FILE = "reference.json"
BATCHES = (64, 16)  # sizes of a batch that the tests on data are measured at
MOST = 1e9  # stands for larger values, infinity and NaN, which JSON has not
FACTOR = 2.0  # of the largest honest value


def limit_of(test: Test, most: float) -> float:
    """Return the limit for a largest honest value: twice as much, at least the test's own; a share at most halfway to 1."""
    about = ABOUT[test]
    return max(about.least, min(FACTOR * most, (1 + most) / 2) if about.share else FACTOR * most)


def summarise_honest(test: Test, values: Sequence[float]) -> Honest:
    """Return what honest models have, from their values."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    return Honest(len(ordered), ordered[len(ordered) // 2], p99, ordered[-1], limit_of(test, ordered[-1]))


@functools.cache
def load_reference() -> dict[str, Honest]:
    """Return the measured distributions by key."""
    stored = json.loads(files("leakscope.scanning").joinpath(FILE).read_text("utf-8"))
    return {key: Honest(**fields) for key, fields in stored["tests"].items()}


def key_of(test: Test, batch: int | None = None) -> str:
    """Return the key of a test in the reference.

    >>> key_of(Test.D_SNR, 64)
    'D-SNR at 64'
    """
    return test.value if batch is None else f"{test.value} at {batch}"


def judge_reading(test: Test, reading: Reading, batch: int | None = None) -> ScanLine:
    """Return the line of a reading: suspect above the limit of honest models, shown where those have any value."""
    if reading.value is None:
        return ScanLine(test, Verdict.ABSENT)
    value = MOST if math.isnan(reading.value) else min(reading.value, MOST)
    honest = load_reference().get(key_of(test, batch))
    if honest is None:
        return ScanLine(test, Verdict.SHOWN, value, reading.where, note="no honest models were measured")
    if honest.limit > MOST:
        return ScanLine(test, Verdict.SHOWN, value, reading.where, honest, note="honest models have any value")
    verdict = Verdict.SUSPECT if value > honest.limit else Verdict.USUAL
    return ScanLine(test, verdict, value, reading.where, honest)
