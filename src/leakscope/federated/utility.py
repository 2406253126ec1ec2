"""Utility of a model: accuracy and mean loss on held-out data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.data import Dataset, Part
from leakscope.learning.losses import LOSSES, one_hot
from leakscope.metrics.interval import Estimate, wilson


@dataclass(frozen=True, slots=True)
class Utility:
    """The number of right answers on `n` examples, and the mean loss."""

    correct: int
    n: int
    loss: float

    @property
    def accuracy(self) -> Estimate:
        """Return the accuracy with Wilson's 95 % interval, for a fixed model and random examples."""
        share = self.correct / self.n
        return Estimate(share, *wilson(share, self.n), self.n, self.n)


AT_ONCE = 500


def measure_utility(
    model: Model,
    weights: Tree,
    buffers: Tree,
    data: Dataset,
    *,
    scaling: Scaling | None = None,
    part: Part = "test",
    most: int | None = None,
    loss: str = "cross_entropy",
) -> Utility:
    """Return accuracy and loss of the model on a part of a data set, or on its first `most` examples."""
    size = min(data.size(part), most or data.size(part))
    if not size:
        raise InputError(f"{data.name} {part} has no examples to measure accuracy on")
    first = next(iter(weights.values()))
    key = random.key(0, first.device)
    correct, total = 0, 0.0
    with torch.no_grad():
        for begin in range(0, size, AT_ONCE):
            places = slice(begin, min(begin + AT_ONCE, size))
            pictures = (scaling or Scaling()).scale(data.pictures(part, places), len(data.input_shape))
            labels = data.labels(part, places).to(first.device)
            output, _ = model.apply(weights, buffers, pictures.to(first.device, first.dtype), key)
            correct += int((output.argmax(-1) == labels).sum())
            total += float(LOSSES[loss](output, one_hot(labels, model.classes, output.dtype)).double().sum())
    return Utility(correct, size, total / size)
