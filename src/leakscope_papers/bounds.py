"""What a measure can be: the interval of a mean is symmetric and may reach beyond it, so it is cut there."""

from __future__ import annotations

import math
from dataclasses import replace

from leakscope.metrics.interval import PSNR_CAP, Estimate

ANYTHING = (-math.inf, math.inf)
SHARE, COSINE, POSITIVE, DECIBELS = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf), (-math.inf, PSNR_CAP)
ONE_LESS_COSINE = (0.0, 2.0)
_NAMES = {
    SHARE: (
        "asr_convergence asr_content asr_label recovery_rate accuracy steady_share close_of_moving least_share mean_share "
        "best_alpha final_alpha alpha_inside reversed_u top_inside membership tracing tracing_reconstructed tracing_chance "
        "worse_on_both share_beaten black_level image_steady_share image_close_of_moving"
    ),
    COSINE: (
        "ssim ssim_all label_minus_content cosine_before cosine_greatest cosine_after cosine_least cosine_mean gradient_cosine "
        "rank_correlation correlation correlation_low correlation_high correlation_private accuracy_rise"
    ),
    POSITIVE: (
        "iterations iterations_mean iterations_min iterations_max iterations_variance mse mse_all similarity_loss change_over_value "
        "share_fluctuation ratio rmse rmse_raw cap cap_raw cap_chance seconds_an_iteration hours memory time_ratio memory_ratio "
        "privacy_rank accuracy_x_rmse accuracy_x_membership accuracy_x_tracing image_change_over_value"
    ),
    DECIBELS: "psnr psnr_private",
    ONE_LESS_COSINE: "objective_error",
}
_CURVES = {
    "cosine along the line": COSINE,
    "share along the steps": SHARE,
    "recovered by threshold": SHARE,
    "change over value at the end": SHARE,
    "change over value of the image MSE at the end": SHARE,
}
BOUNDS = {name: bounds for bounds, names in _NAMES.items() for name in names.split()} | _CURVES
SPREADS = ("_deviation", "_error")  # how far numbers lie apart, whatever they are


def bounds_of(name: str) -> tuple[float, float]:
    """Return the least and the greatest that a measure, or a point of a curve, can be; a name that is not known may be anything.

    >>> bounds_of("ssim"), bounds_of("psnr_deviation"), bounds_of("accuracy_score")
    ((-1.0, 1.0), (0.0, inf), (-inf, inf))
    """
    return BOUNDS.get(name, POSITIVE if name.endswith(SPREADS) else ANYTHING)


def cut(name: str, estimate: Estimate) -> Estimate:
    """Return an estimate with its interval cut to what the measure can be; a cut interval covers no less than a whole one.

    >>> cut("iterations_mean", Estimate(5.5, -39.0, 50.0, 2, 2)).low
    0.0
    """
    least, greatest = bounds_of(name)
    low, high = max(estimate.low, least), min(estimate.high, greatest)  # NaN, put first, stays NaN
    return replace(estimate, low=low, high=high)
