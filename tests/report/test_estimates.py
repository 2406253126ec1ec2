"""The estimates of many groups at once are those of each group by itself."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.metrics import estimate_mean, estimate_rate
from leakscope.metrics.interval import Estimate
from leakscope.report.sheet import Groups, count_rows, means, rates

# One group: trials of one to four samples, each a value and whether it counts.
VALUES = st.tuples(st.floats(-1e3, 1e3), st.booleans())
GROUPS = st.lists(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=0, max_size=6), min_size=1, max_size=5)


def close(a: Estimate, b: Estimate) -> bool:
    """Return whether two estimates are equal up to rounding."""
    size = 1 + abs(b.value)
    pairs = zip((a.value, a.low, a.high), (b.value, b.low, b.high), strict=True)
    same = [
        math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9 * size) or (math.isnan(x) and math.isnan(y)) for x, y in pairs
    ]
    return all(same) and (a.n, a.trials) == (b.n, b.trials)


def lay_out(groups: list[list[list[tuple[float, bool]]]]) -> tuple[Groups, list[float], list[bool]]:
    rows = [(g, (g, t), v, c) for g, trials in enumerate(groups) for t, trial in enumerate(trials) for v, c in trial]
    codes = {trial: i for i, trial in enumerate(dict.fromkeys(row[1] for row in rows))}
    group, trial = (np.array(x, dtype=np.int64) for x in ([r[0] for r in rows], [codes[r[1]] for r in rows]))
    return Groups(group, trial, len(groups)), [r[2] for r in rows], [r[3] for r in rows]


def pad(trials: list[list[tuple[float, bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    wide = max([len(trial) for trial in trials], default=1)
    values = [[v for v, _ in trial] + [0.0] * (wide - len(trial)) for trial in trials]
    counted = [[c for _, c in trial] + [False] * (wide - len(trial)) for trial in trials]
    shape = (len(trials), wide)
    return torch.tensor(values, dtype=torch.float64).reshape(shape), torch.tensor(counted).bool().reshape(shape)


@given(GROUPS)
@settings(deadline=None)  # the first call imports scipy
def test_means_of_many_groups_are_the_means_of_each(groups: list[list[list[tuple[float, bool]]]]) -> None:
    laid, values, counted = lay_out(groups)
    found = means(laid, np.array(values, dtype=np.float64), np.array(counted, dtype=np.bool_))
    for estimate, trials in zip(found, groups, strict=True):
        assert close(estimate, estimate_mean(*pad(trials)))


@given(GROUPS)
@settings(deadline=None)
def test_rates_of_many_groups_are_the_rates_of_each(groups: list[list[list[tuple[float, bool]]]]) -> None:
    laid, values, counted = lay_out(groups)
    hit = np.array(values, dtype=np.float64) > 0
    found = rates(laid, hit, np.array(counted, dtype=np.bool_))
    for estimate, trials in zip(found, groups, strict=True):
        own, kept = pad(trials)
        assert close(estimate, estimate_rate(own > 0, kept))


@given(GROUPS)
def test_rows_are_counted(groups: list[list[list[tuple[float, bool]]]]) -> None:
    laid, _, counted = lay_out(groups)
    expected = [sum(c for trial in trials for _, c in trial) for trials in groups]
    assert count_rows(laid, np.array(counted, dtype=np.bool_)).tolist() == expected
