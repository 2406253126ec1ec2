"""How close a reconstruction came to the private truth, and what many trials say together."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from leakscope.core import registry
from leakscope.metrics.image import mse, psnr, rmse_relative, ssim
from leakscope.metrics.interval import Estimate, estimate_mean, estimate_rate, wilson
from leakscope.metrics.labels import label_correct, label_overlap
from leakscope.metrics.score import Scores, arrange, clean, match, score
from leakscope.metrics.success import DEFAULT_RULE, ContentRule, curve, whole_trials
from leakscope.metrics.summary import PSNR_CAP, Spread, Summary, summarise

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


class Direction(enum.Enum):
    """Which way a metric points when the reconstruction gets better."""

    LOWER = "lower is better"
    HIGHER = "higher is better"


@dataclass(frozen=True, slots=True)
class Metric:
    """A distance or likeness of two stacks, `function(truth, guess)` with one value per item, and how to read it.

    `best` is its value for a perfect reconstruction. `symmetric`: truth and guess may change places. `tables`: it also
    takes rows of a table.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    direction: Direction
    best: float
    symmetric: bool = True
    tables: bool = True

    @property
    def summary(self) -> str:
        """Return what the metric says, in one line."""
        return registry.summary(self.function)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("mse", mse, Direction.LOWER, best=0.0),
        Metric("psnr", psnr, Direction.HIGHER, best=math.inf),
        Metric("ssim", ssim, Direction.HIGHER, best=1.0, tables=False),
        Metric("rmse_relative", rmse_relative, Direction.LOWER, best=0.0, symmetric=False),
    )
}
