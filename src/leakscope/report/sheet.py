"""The results of a sweep, one row per sample of every trial: the page and `leakscope show` both count from it. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leakscope.core.record import Cell
from leakscope.metrics.interval import LEVEL, Estimate, Z, ends_of, wilson
from leakscope.report.cells import with_known_heads

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.store import Run

Columns = Mapping[str, npt.NDArray[Any]]
Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

Tensors = Mapping[str, "Tensor"]

LEARNED = "learned."  # prefix of a value that an attack recovered beside the images


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Rows of results, stored by column."""

    cells: tuple[Cell, ...]
    columns: Columns  # as stored
    cell: Codes  # index into `cells`
    trial: Codes  # code of the trial
    first: Flags  # one row per trial
    outcome: Codes  # index into `outcomes`
    outcomes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def learned(self) -> dict[str, str]:
        """Return the names of values that attacks recovered beside the images, each with its column."""
        return {name.removeprefix(LEARNED): name for name in self.columns if name.startswith(LEARNED)}

    def floats(self, name: str) -> Floats:
        """Return a column as floats."""
        return np.asarray(self.columns[name], dtype=np.float64)

    def flags(self, name: str) -> Flags:
        """Return a column as booleans; unknown is False."""
        return np.asarray(self.columns[name] == 1, dtype=np.bool_)

    @property
    def trials(self) -> int:
        """Return the number of trials, without baselines."""
        return int((self.first & ~self.baseline).sum())

    @property
    def baseline(self) -> Flags:
        """Return which rows belong to a baseline."""
        return np.array([cell.baseline for cell in self.cells], dtype=np.bool_)[self.cell]

    @property
    def samples(self) -> Flags:
        """Return which rows are a sample; a trial without samples has a row with sample -1."""
        return np.asarray(self.columns["sample"] >= 0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The sheet of a sweep and access to the images of its trials."""

    sheet: Sheet
    find: Callable[[str], Tensors]
    _read: dict[str, Tensors] = field(default_factory=dict)

    def tensors(self, row: int) -> Tensors:
        """Return the tensors of the trial of a row; each trial is read once."""
        trial = str(self.sheet.columns["trial"][row])
        if trial not in self._read:
            self._read[trial] = self.find(trial)
        return self._read[trial]


def sheet_of(run: Run) -> Sheet:
    """Return the sheet of a stored run: the trials of the current scenario's cells."""
    cells, stored, columns = with_known_heads(run.cells()), run.cells(current=False), run.columns()
    place = {cell.id: i for i, cell in enumerate(cells)}
    places = np.array([place.get(cell.id, -1) for cell in stored], dtype=np.int64)
    inside = columns["cell"] < len(stored)  # a cell may land between the two reads of a growing run
    columns = {name: values[inside] for name, values in columns.items()}
    return make_sheet(cells, columns | {"cell": places[columns["cell"]] if len(stored) else columns["cell"]})


def make_sheet(cells: Sequence[Cell], columns: Columns) -> Sheet:
    """Return the sheet of these cells and columns; `columns["cell"]` indexes `cells`, rows with -1 are left out."""
    current = columns["cell"] >= 0
    columns = {name: values[current] for name, values in columns.items()}
    trial = columns["trial"]
    first = np.ones(len(trial), dtype=np.bool_)
    first[1:] = trial[1:] != trial[:-1]
    names, outcome = np.unique(columns["outcome"].astype(str), return_inverse=True)
    return Sheet(
        cells=tuple(cells),
        columns=columns,
        cell=columns["cell"].astype(np.int64),
        trial=np.cumsum(first) - 1,
        first=first,
        outcome=outcome.astype(np.int64).reshape(-1),
        outcomes=tuple(str(name) for name in names),
    )


def clusters(sheet: Sheet, group: Codes) -> Codes:
    """Return for every row the code of its client within its group: cells that share clients do not count them twice."""
    columns = sheet.columns
    if not {"seed", "number"} <= set(columns) or not len(group):
        return sheet.trial
    seeds = np.unique(columns["seed"], return_inverse=True)[1].reshape(-1).astype(np.int64)
    numbers = columns["number"].astype(np.int64)
    code = (group * (int(seeds.max()) + 1) + seeds) * (int(numbers.max()) + 1) + numbers
    clients: Codes = np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return clients


def results_of(run: Run) -> Results:
    """Return the results of a stored run."""
    return Results(sheet_of(run), run.tensors)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The group and trial of each row, as codes from 0; the rows of a trial are all in one group."""

    group: Codes
    trial: Codes
    count: int


class _Sums(NamedTuple):
    """Per group: mean, counted rows, trials that hold any, V, and the sum of squared trial sizes."""

    mean: Floats
    n: Floats
    trials: Floats
    variance: Floats
    squares: Floats


def rates(groups: Groups, hit: Flags, counted: Flags) -> list[Estimate]:
    """Return for each group the share of counted rows that hit; see `metrics.interval.estimate_rate`."""
    sums = _sum_up(groups, hit.astype(np.float64), counted)
    with np.errstate(divide="ignore", invalid="ignore"):
        floor = sums.n**2 / sums.squares
        spread = sums.mean * (1 - sums.mean)
        independent = np.where(sums.variance <= spread / sums.n, sums.n, spread / sums.variance)
        worth = np.maximum(floor, independent * (Z / _t(sums.trials - 1)) ** 2)
    tries = np.where((sums.trials > 1) & (sums.mean > 0) & (sums.mean < 1), worth, floor)
    return [
        Estimate(mean, *wilson(mean, effective), int(n), int(trials)) if n else _nothing()
        for mean, effective, n, trials in zip(
            sums.mean.tolist(), tries.tolist(), sums.n.tolist(), sums.trials.tolist(), strict=True
        )
    ]


def means(
    groups: Groups, values: Floats, counted: Flags, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> list[Estimate]:
    """Return for each group the mean of its counted values; see `metrics.interval.estimate_mean`."""
    sums = _sum_up(groups, values, counted)
    half = _t(sums.trials - 1) * np.sqrt(sums.variance)
    return [
        Estimate(mean, *ends_of(mean, width, int(trials), within), int(n), int(trials)) if n else _nothing()
        for mean, width, n, trials in zip(
            sums.mean.tolist(), half.tolist(), sums.n.tolist(), sums.trials.tolist(), strict=True
        )
    ]


def count_rows(groups: Groups, counted: Flags) -> Codes:
    """Return the number of counted rows of each group."""
    return np.bincount(groups.group[counted], minlength=groups.count).astype(np.int64)


def _sum_up(groups: Groups, values: Floats, counted: Flags) -> _Sums:
    group, trial, y = groups.group[counted], groups.trial[counted], values[counted]
    n = np.bincount(group, minlength=groups.count).astype(np.float64)
    clusters = int(groups.trial.max(initial=-1)) + 1
    group_of = np.zeros(clusters, dtype=np.int64)
    group_of[trial] = group
    sizes = np.bincount(trial, minlength=clusters).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(group, y, minlength=groups.count) / n
        excess = np.bincount(trial, y - mean[group], minlength=clusters)
        trials = np.bincount(group_of[sizes > 0], minlength=groups.count).astype(np.float64)
        total = np.bincount(group_of, excess**2, minlength=groups.count)
        variance = np.where(trials > 1, trials / (trials - 1) * total / n**2, np.nan)
    return _Sums(mean, n, trials, variance, np.bincount(group_of, sizes**2, minlength=groups.count).astype(np.float64))


def _t(freedom: Floats) -> Floats:
    """Return the quantiles of Student's t for a 95 % interval; NaN below one degree of freedom."""
    from scipy.special import stdtrit

    known = freedom >= 1
    return np.where(known, stdtrit(np.where(known, freedom, 1.0), 0.5 + LEVEL / 2), np.nan)


def _nothing() -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, 0, 0)
