"""The names of measures for people."""

from __future__ import annotations

from leakscope.analysis.convergence import SUFFICIENT
from leakscope.metrics.recovery import THRESHOLD

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
    """Return a measure in words."""
    return TITLES.get(name, name.replace("_", " "))
