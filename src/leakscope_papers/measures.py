"""The measures of a cell, named like the columns of the papers: rates and means with n, interval and what they are over.

A success is an attack that converged: its mismatch fell below its threshold (CPL, sections 2.3 and 3.3). Iterations are over
successes, as printed. SSIM and MSE are over successes, or over all attacks if there are none, and say so. Content (our rule,
`leakscope.metrics.success`), PSNR and similarity loss (as in SME) are over all attacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.metrics.interval import LEVEL, Estimate, estimate_mean, estimate_rate
from leakscope.metrics.recovery import THRESHOLD, recovery
from leakscope_papers.measure_names import cut
from leakscope_papers.scored import Scored
from leakscope_papers.theory.convergence import change_ratios, shares

NONE = Estimate(math.nan, math.nan, math.nan, 0, 0)
CONVERGED = "trials that converged"
FLOOR = 1e-8  # smaller gradient distances are rounding errors
IMAGE_FLOOR = 1e-3 * THRESHOLD  # far below the threshold of recovery


@dataclass(frozen=True, slots=True)
class Value:
    """One measured number, and what it is over if not all attacks."""

    estimate: Estimate
    over: str = ""

    @property
    def has_number(self) -> bool:
        """Return whether there is a number."""
        return math.isfinite(self.estimate.value)

    @property
    def of_successes(self) -> bool:
        """Return whether it is only over attacks that converged."""
        return self.over.endswith(CONVERGED)

    @property
    def of_some(self) -> bool:
        """Return whether attacks that did not converge were left out."""
        counts = self.over.removesuffix(CONVERGED).split(" of ") if self.of_successes else ()
        return len({int(count) for count in counts}) > 1


def measure(cell: Scored, cap: int | None = None) -> dict[str, Value]:
    """Return every measure of a cell; with a `cap`, attacks that needed more iterations count as failed."""
    success = cell.converged if cap is None else cell.converged & (cell.iterations <= cap)
    values = {name: function(cell, success) for name, function in MEASURES.items()}
    return {name: replace(value, estimate=cut(name, value.estimate)) for name, value in values.items()}


def value_of(name: str, numbers: Sequence[float | None]) -> Value:
    """Return the mean of a program's numbers with its interval (None is no number); rates get the interval of a rate."""
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
    """Return a program's numbers; older rows get `top_inside` from the positions of their largest cosines."""
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
    """Return a measure of the successes' iterations, without an interval; it needs `least` successes."""

    def measured(cell: Scored, success: Tensor) -> Value:
        n = int(success.sum())
        if n < least:
            return Value(NONE, "no trial converged" if not n else "one trial converged")
        value = float(function(cell.iterations[success]))
        return Value(Estimate(value, math.nan, math.nan, n, n), _over(cell, success))

    return measured


def _mean_of(name: str, *, everything: bool) -> Callable[[Scored, Tensor], Value]:
    """Return a measure of the images: over successes, or over all attacks if there are none or with `everything`."""

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
    """Return SME's L_sim = 1 - cos at the end of the attacks, over those that have it (not DLFA in older runs)."""
    del success
    known = torch.zeros(0) if cell.similarity is None else cell.similarity[cell.similarity.isfinite()]
    if not len(known):
        return Value(NONE)
    over = "" if len(known) == cell.trials else f"{len(known)} of {cell.trials} trials that have it"
    return Value(estimate_mean(known[:, None], torch.ones_like(known)[:, None].bool()), over)


def _error_of(name: str) -> Callable[[Scored, Tensor], Value]:
    """Return the standard error of another measure's mean: half its 95 % interval over the quantile of Student's t."""

    def measured(cell: Scored, success: Tensor) -> Value:
        from scipy.stats import t

        mean = MEASURES[name](cell, success).estimate
        if mean.trials < 2:
            return Value(NONE, "one trial has no error" if mean.trials == 1 else "")
        agree = not math.isfinite(mean.low)  # few trials of one value have no interval
        error = 0.0 if agree else (mean.high - mean.value) / float(t.ppf(0.5 + LEVEL / 2, mean.trials - 1))
        return Value(Estimate(error, math.nan, math.nan, mean.n, mean.trials))

    return measured


def _alphas(cell: Scored) -> Tensor | None:
    """Return the final positions of SME's surrogates on the line from w0 (0) to wT (1); None without any."""
    known = cell.alpha[cell.alpha.isfinite()] if cell.alpha is not None else torch.empty(0)
    return known[:, None] if len(known) else None


def _alpha(cell: Scored, success: Tensor) -> Value:
    del success
    alphas = _alphas(cell)
    return Value(NONE) if alphas is None else Value(estimate_mean(alphas, torch.ones_like(alphas, dtype=torch.bool)))


def _alpha_deviation(cell: Scored, success: Tensor) -> Value:
    del success
    alphas = _alphas(cell)
    if alphas is None or len(alphas) < 2:
        return Value(NONE)
    return Value(Estimate(float(alphas.std()), math.nan, math.nan, len(alphas), len(alphas)))


def _alpha_inside(cell: Scored, success: Tensor) -> Value:
    """Return the share of trials whose final alpha is inside (0, 1)."""
    del success
    alphas = _alphas(cell)
    return Value(NONE) if alphas is None else _rate((alphas > 0) & (alphas < 1), torch.ones_like(alphas).bool())


def _label(cell: Scored, success: Tensor) -> Value:
    del success
    return _rate(cell.label == 1, cell.scored & (cell.label >= 0))


def _content(cell: Scored, success: Tensor) -> Value:
    del success
    return _rate(cell.recovered, cell.scored)


def _label_minus_content(cell: Scored, success: Tensor) -> Value:
    """Return the mean over samples of (label correct) - (content recovered)."""
    del success
    counted = cell.scored & (cell.label >= 0)
    if not bool(counted.any()):
        return Value(NONE)
    return Value(estimate_mean(cell.label.nan_to_num() - cell.recovered.double(), counted))


def _recovery(cell: Scored, success: Tensor) -> Value:
    """Return Mixing's recovery rate: the share of inputs recovered by MSE alone (`leakscope.metrics.recovery`)."""
    del success
    if not bool(cell.scored.any()):
        return Value(NONE)
    return Value(recovery(cell.mse, cell.scored).samples)


def gradient_ratios(cell: Scored) -> Tensor | None:
    """Return log10(change / value) of the gradient distance at the end of every run, T x K; None without a point."""
    return _ratios(cell, cell.trace, cell.trace_at, FLOOR)


def image_ratios(cell: Scored) -> Tensor | None:
    """Return log10(change / value) of the image MSE, if the attacks recorded their last iterations."""
    return _ratios(cell, cell.image_mse, cell.image_mse_at, IMAGE_FLOOR)


def _ratios(cell: Scored, values: Tensor | None, at: Tensor | None, floor: float) -> Tensor | None:
    if values is None or at is None:
        return None
    ratios = change_ratios(values, at, floor=floor, resting=cell.stalled)
    return ratios if bool((~ratios.isnan()).any()) else None


def _at_the_end(
    ratios_of: Callable[[Scored], Tensor | None], summarise: Callable[[Tensor, int], Value]
) -> Callable[[Scored, Tensor], Value]:
    """Return a measure of the changes at the end of the runs; no number if there are none."""

    def measured(cell: Scored, success: Tensor) -> Value:
        del success
        ratios = ratios_of(cell)
        return Value(NONE) if ratios is None else summarise(ratios, cell.trials)

    return measured


def _steady(ratios: Tensor, trials: int) -> Value:
    del trials
    return Value(shares(ratios).steady)


def _close_of_moving(ratios: Tensor, trials: int) -> Value:
    """Return the share of the points with a change whose change / value is below 1e-3."""
    del trials
    moving = shares(ratios)
    near, far = moving.close.value, moving.moving.value
    return (
        Value(Estimate(near / (near + far), math.nan, math.nan, 0, 0)) if near + far else Value(NONE, "no point moves")
    )


def _largest_change(ratios: Tensor, trials: int) -> Value:
    largest = float(10 ** ratios[~ratios.isnan()].max())
    return Value(Estimate(largest, math.nan, math.nan, trials, trials))


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
    "final_alpha": _alpha,
    "final_alpha_deviation": _alpha_deviation,
    "alpha_inside": _alpha_inside,
    "recovery_rate": _recovery,
    "steady_share": _at_the_end(gradient_ratios, _steady),
    "close_of_moving": _at_the_end(gradient_ratios, _close_of_moving),
    "change_over_value": _at_the_end(gradient_ratios, _largest_change),
    "image_steady_share": _at_the_end(image_ratios, _steady),
    "image_close_of_moving": _at_the_end(image_ratios, _close_of_moving),
    "image_change_over_value": _at_the_end(image_ratios, _largest_change),
}
RATES = frozenset(
    {"asr_convergence", "asr_content", "asr_label", "recovery_rate", "accuracy", "steady_share", "close_of_moving"}
    | {"image_steady_share", "image_close_of_moving"}
)
COUNTS = frozenset(
    {
        "reversed_u",
        "top_inside",
        "alpha_inside",
        "worse_on_both",
        "membership",
        "membership_unpaired",
        "tracing",
        "tracing_reconstructed",
    }
)
