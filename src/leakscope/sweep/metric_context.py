"""What the metrics of a chunk compare with: public examples and the networks of its trials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from torch import Tensor

from leakscope.core import random
from leakscope.core.registry import lookup
from leakscope.core.types import Batch
from leakscope.metrics import METRICS, Context, ContextMetric
from leakscope.models import draw_parameters, features_of
from leakscope.play.baselines import public_part
from leakscope.scenario.cell import CellSettings
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.objects import data_of, network_of, scaling_of


def metric_context(
    names: Sequence[str], data: DataChoice, truth: Batch, trials: Sequence[tuple[CellSettings, int]]
) -> Context | None:
    """Return the context of T trials, each given by settings and seed; None if no named metric needs one.

    Without `trials` (a null baseline has no network) the context has no features.
    """
    if not any(isinstance(lookup(METRICS, name, "metric"), ContextMetric) for name in names):
        return None
    public, public_labels = public_part(data_of(data), data.part)
    labels = truth.labels.where(truth.mask, truth.labels[:, :1])

    @functools.lru_cache(maxsize=1)
    def network(trial: int) -> Callable[[Tensor], Tensor]:
        return _features(*trials[trial])

    return Context(labels, public, public_labels, (lambda trial, inputs: network(trial)(inputs)) if trials else None)


def _features(settings: CellSettings, seed: int) -> Callable[[Tensor], Tensor]:
    """Return the features of a trial's network for inputs in [0, 1]."""
    model, scaling = network_of(settings), scaling_of(settings.data)
    drawn = draw_parameters(model, settings.weights, random.key([seed]))
    read = features_of(model, {name: value[0] for name, value in drawn.items()})
    return lambda inputs: read(scaling.scale(inputs, len(model.input_shape)))
