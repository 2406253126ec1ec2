"""The metrics by name, with their direction and range."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from leakscope.core import registry
from leakscope.metrics.context import Context
from leakscope.metrics.identification import feature_distance, iip_features, iip_pixels, rank_features, rank_pixels
from leakscope.metrics.image import mse, psnr, rmse_relative, ssim
from leakscope.metrics.multiscale import ms_ssim
from leakscope.metrics.prior_gain import rdlv
from leakscope.metrics.wavelet import cw_ssim


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


@dataclass(frozen=True, slots=True)
class ContextMetric:
    """A metric `function(truth, guess, context)` of T x N examples with one value each; `network`: it needs the context's features.

    `best` is its value for a perfect reconstruction, None if that depends on the example. It is computed only where a scenario
    asks for it.
    """

    name: str
    function: Callable[[Tensor, Tensor, Context], Tensor]
    direction: Direction
    best: float | None
    network: bool = False
    tables: bool = True

    @property
    def summary(self) -> str:
        """Return the meaning of the metric in one line."""
        return registry.summary(self.function)


METRICS: dict[str, Metric | ContextMetric] = {
    metric.name: metric
    for metric in (
        Metric("mse", mse, Direction.LOWER, best=0.0),
        Metric("psnr", psnr, Direction.HIGHER, best=math.inf),
        Metric("ssim", ssim, Direction.HIGHER, best=1.0, tables=False),
        Metric("rmse_relative", rmse_relative, Direction.LOWER, best=0.0, symmetric=False),
        Metric("ms_ssim", ms_ssim, Direction.HIGHER, best=1.0, tables=False),
        Metric("cw_ssim", cw_ssim, Direction.HIGHER, best=1.0, tables=False),
        ContextMetric("iip_pixels", iip_pixels, Direction.HIGHER, best=1.0),
        ContextMetric("iip_features", iip_features, Direction.HIGHER, best=1.0, network=True),
        ContextMetric("rank_pixels", rank_pixels, Direction.LOWER, best=0.0),
        ContextMetric("rank_features", rank_features, Direction.LOWER, best=0.0, network=True),
        ContextMetric("feature_distance", feature_distance, Direction.LOWER, best=0.0, network=True),
        ContextMetric("rdlv", rdlv, Direction.HIGHER, best=None, tables=False),
    )
}
