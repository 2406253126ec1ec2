"""The metrics by name, with their direction and range."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from leakscope.core import registry
from leakscope.metrics.image import mse, psnr, rmse_relative, ssim


class Direction(enum.Enum):
    """Which way a metric points when the reconstruction gets better."""

    LOWER = "lower is better"
    HIGHER = "higher is better"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric `function(truth, guess)` with one value per item; `best` is its value for a perfect reconstruction.

    `symmetric`: truth and guess may be swapped. `tables`: it also applies to table rows.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    direction: Direction
    best: float
    symmetric: bool = True
    tables: bool = True

    @property
    def summary(self) -> str:
        """Return the meaning of the metric in one line."""
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
