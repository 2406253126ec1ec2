"""What we measure in a cell, named like the columns of the papers: rates and means with n, interval and what they are over.

A success is an attack that converged: its own mismatch fell under its threshold (CPL, sections 2.3 and 3.3). Iterations are over
successes, as the papers print them. SSIM and MSE are over successes where there are any and over everything attacked where there
are none, and say so. Content is our own rule (`leakscope.metrics.success`), over everything attacked. PSNR and the similarity loss
are over everything attacked, as SME prints them. What a program measures comes as plain numbers (`value_of`). Every interval is cut
to what its measure can be (`bounds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakscope.analysis.convergence import SUFFICIENT, change_ratios, shares
from leakscope.experiments.papers.bounds import cut
from leakscope.metrics.interval import LEVEL, PSNR_CAP, Estimate, estimate_mean, estimate_rate
from leakscope.metrics.recovery import THRESHOLD, recovery

Floats = npt.NDArray[np.float64]
NONE = Estimate(math.nan, math.nan, math.nan, 0, 0)
CONVERGED = "trials that converged"
FLOOR = 1e-8  # gradient distances under it are rounding, and their changes say nothing


@dataclass(frozen=True, slots=True)
class Value:
    """One measured number, and what it is over where that is not everything attacked."""

    estimate: Estimate
    over: str = ""

    @property
    def there(self) -> bool:
        """Return whether there is a number at all."""
        return math.isfinite(self.estimate.value)

    @property
    def of_successes(self) -> bool:
        """Return whether it is over the attacks that converged alone."""
        return self.over.endswith(CONVERGED)

    @property
    def of_some(self) -> bool:
        """Return whether attacks were left out of it because they did not converge."""
        counts = self.over.removesuffix(CONVERGED).split(" of ") if self.of_successes else ()
        return len({int(count) for count in counts}) > 1


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The trials of one cell: by trial (T) outcome and iterations, by sample (T x N, padded) what was scored.

    `trace` is the mismatch of every trial at iterations `trace_at` (T x K), where an item asks for it.
    """

    ids: tuple[str, ...]
    converged: Tensor
    stalled: Tensor
    iterations: Tensor
    scored: Tensor
    mse: Tensor
    ssim: Tensor
    recovered: Tensor
    label: Tensor
    psnr: Tensor
    mismatch: Tensor
    outcomes: Mapping[str, int] = field(default_factory=dict)
    trace: Tensor | None = None
    trace_at: Tensor | None = None

    @property
    def trials(self) -> int:
        """Return T."""
        return len(self.converged)


def score_cells(columns: Mapping[str, npt.NDArray[np.generic]]) -> dict[int, Scored]:
    """Return place of the cell -> its trials, from the columns of a stored run (`Run.columns`)."""
    cells = np.asarray(columns["cell"], dtype=np.int64)
    order = np.argsort(cells, kind="stable")  # rows of a trial stay together
    bounds = np.flatnonzero(np.diff(cells[order])) + 1
    return {int(cells[rows[0]]): _scored(columns, rows) for rows in np.split(order, bounds) if len(rows)}


def _scored(columns: Mapping[str, npt.NDArray[np.generic]], rows: npt.NDArray[np.int64]) -> Scored:
    trial = columns["trial"][rows]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = trial[1:] != trial[:-1]
    number = np.cumsum(first) - 1
    place = np.arange(len(rows)) - np.flatnonzero(first)[number]
    shape = (int(number[-1]) + 1, int(place.max()) + 1)

    def spread(name: str) -> Tensor:
        values = np.full(shape, np.nan)
        values[number, place] = np.asarray(columns[name][rows], dtype=np.float64)
        return torch.from_numpy(values)

    outcome = columns["outcome"][rows][first].astype(str)
    names, counts = np.unique(outcome, return_counts=True)
    iterations, mismatch = (
        np.asarray(columns[name][rows][first], dtype=np.float64) for name in ("iterations", "mismatch")
    )
    return Scored(
        ids=tuple(str(name) for name in trial[first]),
        converged=torch.from_numpy(outcome == "converged"),
        stalled=torch.from_numpy(outcome == "stalled"),
        iterations=torch.from_numpy(iterations),
        scored=spread("sample") >= 0,
        mse=spread("mse"),
        ssim=spread("ssim"),
        recovered=spread("recovered") == 1,
        label=spread("label_correct"),
        psnr=spread("psnr").clamp_max(PSNR_CAP),
        mismatch=torch.from_numpy(mismatch),
        outcomes={str(name): int(count) for name, count in zip(names, counts, strict=True)},
    )


def measure(cell: Scored, cap: int | None = None) -> dict[str, Value]:
    """Return every measure of a cell; with a `cap`, attacks that needed more iterations count as failed."""
    success = cell.converged if cap is None else cell.converged & (cell.iterations <= cap)
    found = {name: function(cell, success) for name, function in MEASURES.items()}
    return {name: replace(value, estimate=cut(name, value.estimate)) for name, value in found.items()}


def value_of(name: str, numbers: Sequence[float | None]) -> Value:
    """Return the mean of a program's numbers with its interval; None is no number, one number alone has no interval.

    Zeros and ones of a measure that is a rate, or counts what is so, get the interval of a rate.
    """
    known = [number for number in numbers if number is not None]
    if not known:
        return Value(NONE)
    values = torch.tensor(known, dtype=torch.float64)[:, None]
    counted = torch.ones_like(values, dtype=torch.bool)
    over = "" if len(known) == len(numbers) else f"{len(known)} of {len(numbers)} that are finite"
    if name in RATES | COUNTS and len(known) > 1 and bool(((values == 0) | (values == 1)).all()):
        return Value(estimate_rate(values == 1, counted), over)
    return Value(cut(name, estimate_mean(values, counted)), over)


def with_top_inside(numbers: Mapping[str, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    """Return a program's numbers; rows made before `top_inside` was kept get it from the places of their greatest cosines."""
    if "best_alpha" not in numbers or "top_inside" in numbers:
        return dict(numbers)
    inside = [None if alpha is None else float(0 < alpha < 1) for alpha in numbers["best_alpha"]]
    return {**numbers, "top_inside": inside}


def _rate(hit: Tensor, counted: Tensor) -> Value:
    return Value(estimate_rate(hit, counted)) if bool(counted.any()) else Value(NONE)


def _over(cell: Scored, success: Tensor) -> str:
    return f"{int(success.sum())} of {cell.trials} {CONVERGED}"


def _convergence(cell: Scored, success: Tensor) -> Value:
    del cell
    return _rate(success[:, None], torch.ones_like(success)[:, None])


def _steps(cell: Scored, success: Tensor) -> Value:
    if not bool(success.any()):
        return Value(NONE, "no trial converged")
    return Value(estimate_mean(cell.iterations[:, None], success[:, None]), _over(cell, success))


def _of_steps(function: Callable[[Tensor], Tensor], least: int) -> Callable[[Scored, Tensor], Value]:
    """Return a measure of the iterations of successes that has no interval; `least` successes are needed."""

    def measured(cell: Scored, success: Tensor) -> Value:
        n = int(success.sum())
        if n < least:
            return Value(NONE, "no trial converged" if not n else "one trial converged")
        value = float(function(cell.iterations[success]))
        return Value(Estimate(value, math.nan, math.nan, n, n), _over(cell, success))

    return measured


def _mean_of(name: str, *, everything: bool) -> Callable[[Scored, Tensor], Value]:
    """Return a measure of the picture: over successes, or over everything where there is none or it is asked for."""

    def measured(cell: Scored, success: Tensor) -> Value:
        values: Tensor = getattr(cell, name)
        known = cell.scored & ~values.isnan()
        whole = everything or not bool(success.any())
        counted = known if whole else known & success[:, None]
        if not bool(counted.any()):
            return Value(NONE)
        over = "" if everything else "everything attacked, as none converged" if whole else _over(cell, success)
        return Value(estimate_mean(values.nan_to_num(), counted), over)

    return measured


def _similarity(cell: Scored, success: Tensor) -> Value:
    """Return the mismatch that the attacks ended with: SME's L_sim = 1 - cos where they match by cosine."""
    del success
    known = cell.mismatch.isfinite()
    if not bool(known.any()):
        return Value(NONE)
    return Value(estimate_mean(cell.mismatch.nan_to_num()[:, None], known[:, None]))


def _error_of(name: str) -> Callable[[Scored, Tensor], Value]:
    """Return the standard error of another measure's mean: half its 95 % interval over the quantile of Student's t."""

    def measured(cell: Scored, success: Tensor) -> Value:
        from scipy.stats import t

        found = MEASURES[name](cell, success).estimate
        if not math.isfinite(found.low):
            return Value(NONE, "one trial has no error" if found.trials == 1 else "")
        error = (found.high - found.value) / float(t.ppf(0.5 + LEVEL / 2, found.trials - 1))
        return Value(Estimate(error, math.nan, math.nan, found.n, found.trials))

    return measured


def _label(cell: Scored, success: Tensor) -> Value:
    del success
    return _rate(cell.label == 1, cell.scored & (cell.label >= 0))


def _content(cell: Scored, success: Tensor) -> Value:
    del success
    return _rate(cell.recovered, cell.scored)


def _label_minus_content(cell: Scored, success: Tensor) -> Value:
    """Return by how much more often the label is right than the content is recovered, sample by sample."""
    del success
    counted = cell.scored & (cell.label >= 0)
    if not bool(counted.any()):
        return Value(NONE)
    return Value(estimate_mean(cell.label.nan_to_num() - cell.recovered.double(), counted))


def _recovery(cell: Scored, success: Tensor) -> Value:
    """Return Mixing's recovery rate: the share of inputs by MSE alone (`leakscope.metrics.recovery`)."""
    del success
    if not bool(cell.scored.any()):
        return Value(NONE)
    return Value(recovery(cell.mse, cell.scored).samples)


def _ratios(cell: Scored) -> Tensor | None:
    """Return log10 of change over value at the end of every run, T x K; None where no trace was read or nothing counts."""
    if cell.trace is None or cell.trace_at is None:
        return None
    ratios = change_ratios(cell.trace, cell.trace_at, floor=FLOOR, resting=cell.stalled)
    return ratios if bool((~ratios.isnan()).any()) else None


def _steady(cell: Scored, success: Tensor) -> Value:
    del success
    ratios = _ratios(cell)
    return Value(NONE) if ratios is None else Value(shares(ratios).steady)


def _close_of_moving(cell: Scored, success: Tensor) -> Value:
    """Return the share of the points that are not steady whose change over value is below 1e-3."""
    del success
    ratios = _ratios(cell)
    if ratios is None:
        return Value(NONE)
    moving = shares(ratios)
    near, far = moving.close.value, moving.moving.value
    return (
        Value(Estimate(near / (near + far), math.nan, math.nan, 0, 0)) if near + far else Value(NONE, "no point moves")
    )


def _largest_change(cell: Scored, success: Tensor) -> Value:
    del success
    ratios = _ratios(cell)
    if ratios is None:
        return Value(NONE)
    largest = float(10 ** ratios[~ratios.isnan()].max())
    return Value(Estimate(largest, math.nan, math.nan, cell.trials, cell.trials))


MEASURES: dict[str, Callable[[Scored, Tensor], Value]] = {
    "iterations_mean": _steps,
    "iterations_min": _of_steps(torch.amin, 1),
    "iterations_max": _of_steps(torch.amax, 1),
    "iterations_variance": _of_steps(torch.var, 2),
    "asr_convergence": _convergence,
    "asr_content": _content,
    "asr_label": _label,
    "label_minus_content": _label_minus_content,
    "ssim": _mean_of("ssim", everything=False),
    "mse": _mean_of("mse", everything=False),
    "ssim_all": _mean_of("ssim", everything=True),
    "mse_all": _mean_of("mse", everything=True),
    "psnr": _mean_of("psnr", everything=True),
    "psnr_error": _error_of("psnr"),
    "similarity_loss": _similarity,
    "similarity_loss_error": _error_of("similarity_loss"),
    "recovery_rate": _recovery,
    "steady_share": _steady,
    "close_of_moving": _close_of_moving,
    "change_over_value": _largest_change,
}
RATES = frozenset(
    {"asr_convergence", "asr_content", "asr_label", "recovery_rate", "accuracy", "steady_share", "close_of_moving"}
)
COUNTS = frozenset({"reversed_u", "top_inside", "worse_on_both", "membership", "tracing", "tracing_reconstructed"})
TITLES = {
    "iterations_mean": "iterations, mean over successes",
    "iterations_min": "iterations, least of successes",
    "iterations_max": "iterations, most of successes",
    "iterations_variance": "iterations, variance over successes",
    "asr_convergence": "success by convergence",
    "asr_content": "content recovered (our rule)",
    "asr_label": "label right",
    "label_minus_content": "label right minus content recovered",
    "ssim": "SSIM",
    "mse": "MSE",
    "ssim_all": "SSIM, everything attacked",
    "mse_all": "MSE, everything attacked",
    "psnr": "PSNR, everything attacked",
    "psnr_error": "PSNR, standard error",
    "similarity_loss": "similarity loss at the end",
    "similarity_loss_error": "similarity loss, standard error",
    "recovery_rate": f"recovered: MSE at most {THRESHOLD:g}",
    "accuracy": "accuracy",
    "top_inside": "largest cosine inside the line, share of clients",
    "steady_share": "steady at the end",
    "close_of_moving": f"change under {SUFFICIENT:g}, of those not steady",
    "change_over_value": "change over value at the end, largest",
    "psnr_private": "PSNR against the private picture x",
    "psnr_deviation": "PSNR, standard deviation over pictures",
    "black_level": "brightness of the reconstruction where T(x) is black",
    "privacy_score": "privacy score (lower is more private)",
    "privacy_rank": "place by privacy score (1 is most private)",
    "accuracy_score": "accuracy score (higher is better)",
    "share_beaten": "share of random policies that are less private",
    "worse_on_both": "share less private and less accurate than no policy",
    "correlation": "correlation of privacy score with PSNR against T(x)",
    "correlation_low": "correlation, low end of its 95 % interval",
    "correlation_high": "correlation, high end of its 95 % interval",
    "correlation_private": "correlation of privacy score with PSNR against x",
    "rank_correlation": "rank correlation (Spearman)",
    "accuracy_rise": "rise of accuracy after a drop of the rate",
}


def title_of(name: str) -> str:
    """Return a measure in words."""
    return TITLES.get(name, name.replace("_", " "))
