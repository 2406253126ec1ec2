"""How close a reconstruction came to the private truth, and what many trials say together.

Names are looked up on first use: what only counts (`Estimate`, `wilson`) is had without paying for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.metrics.catalogue import METRICS, Direction, Metric
    from leakscope.metrics.image import mse, psnr, rmse_relative, ssim
    from leakscope.metrics.interval import PSNR_CAP, Estimate, estimate_mean, estimate_rate, wilson
    from leakscope.metrics.labels import label_correct, label_overlap
    from leakscope.metrics.scoring import Scores, arrange, clean, match, score
    from leakscope.metrics.success import DEFAULT_RULE, ContentRule, curve, whole_trials
    from leakscope.metrics.summary import Spread, Summary, summarise

__all__ = [
    "DEFAULT_RULE",
    "METRICS",
    "PSNR_CAP",
    "ContentRule",
    "Direction",
    "Estimate",
    "Metric",
    "Scores",
    "Spread",
    "Summary",
    "arrange",
    "clean",
    "curve",
    "estimate_mean",
    "estimate_rate",
    "label_correct",
    "label_overlap",
    "match",
    "mse",
    "psnr",
    "rmse_relative",
    "score",
    "ssim",
    "summarise",
    "whole_trials",
    "wilson",
]

_HOME = {
    "METRICS": "catalogue",
    "Direction": "catalogue",
    "Metric": "catalogue",
    "mse": "image",
    "psnr": "image",
    "rmse_relative": "image",
    "ssim": "image",
    "PSNR_CAP": "interval",
    "Estimate": "interval",
    "estimate_mean": "interval",
    "estimate_rate": "interval",
    "wilson": "interval",
    "label_correct": "labels",
    "label_overlap": "labels",
    "Scores": "scoring",
    "arrange": "scoring",
    "clean": "scoring",
    "match": "scoring",
    "score": "scoring",
    "DEFAULT_RULE": "success",
    "ContentRule": "success",
    "curve": "success",
    "whole_trials": "success",
    "Spread": "summary",
    "Summary": "summary",
    "summarise": "summary",
}


if not TYPE_CHECKING:  # a type checker reads the imports above, and still finds misspelt names

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
