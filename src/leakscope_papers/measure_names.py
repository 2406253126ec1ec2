"""Titles and ranges of measures. Intervals of means are symmetric, so they are clipped to the range."""

from __future__ import annotations

import math
from dataclasses import replace

from leakscope.metrics.interval import PSNR_CAP, Estimate
from leakscope.metrics.recovery import THRESHOLD
from leakscope_papers.theory.convergence import SUFFICIENT

ANYTHING = (-math.inf, math.inf)
SHARE, COSINE, POSITIVE, DECIBELS = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf), (-math.inf, PSNR_CAP)
ONE_LESS_COSINE = (0.0, 2.0)
_NAMES = {
    SHARE: (
        "asr_convergence asr_content asr_label recovery_rate accuracy steady_share close_of_moving least_share mean_share "
        "best_alpha final_alpha alpha_inside reversed_u top_inside membership tracing tracing_reconstructed "
        "membership_unpaired tracing_chance "
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
SPREADS = ("_deviation", "_error")  # spreads of any measure


def bounds_of(name: str) -> tuple[float, float]:
    """Return the minimum and maximum of a measure or a point of a curve; infinite for an unknown name.

    >>> bounds_of("ssim"), bounds_of("psnr_deviation"), bounds_of("accuracy_score")
    ((-1.0, 1.0), (0.0, inf), (-inf, inf))
    """
    return BOUNDS.get(name, POSITIVE if name.endswith(SPREADS) else ANYTHING)


def cut(name: str, estimate: Estimate) -> Estimate:
    """Return an estimate with its interval clipped to the measure's range, which loses no coverage.

    >>> cut("iterations_mean", Estimate(5.5, -39.0, 50.0, 2, 2)).low
    0.0
    """
    least, greatest = bounds_of(name)
    low, high = max(estimate.low, least), min(estimate.high, greatest)  # NaN as the first argument stays NaN
    return replace(estimate, low=low, high=high)


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
    "psnr_above_baselines": "PSNR above the better baseline",
    "psnr_error": "PSNR, standard error",
    "similarity_loss": "similarity loss at the end",
    "similarity_loss_error": "similarity loss, standard error",
    "recovery_rate": f"recovered: MSE at most {THRESHOLD:g}",
    "accuracy": "accuracy",
    "objective_error": "objective error of IG, 1 - cosine at w0",
    "top_inside": "largest cosine inside the line, share of clients",
    "final_alpha": "alpha at the end (0 is w0, 1 is wT)",
    "final_alpha_deviation": "alpha at the end, standard deviation over clients",
    "alpha_inside": "alpha ends inside (0, 1), share of clients",
    "steady_share": "steady at the end",
    "close_of_moving": f"change under {SUFFICIENT:g}, of those not steady",
    "change_over_value": "change over value at the end, largest",
    "image_steady_share": "image MSE: steady at the end",
    "image_close_of_moving": f"image MSE: change under {SUFFICIENT:g}, of those not steady",
    "image_change_over_value": "image MSE: change over value at the end, largest",
    "psnr_private": "PSNR against the private picture x",
    "psnr_gain": "PSNR above the default attack",
    "psnr_private_gain": "PSNR against x above the default attack",
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
    """Return the title of a measure."""
    return TITLES.get(name, name.replace("_", " "))
