"""The account of one client's update: its gradients by a dense layer and the next one, what samples explain of them, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.short_repr import short_repr

# relative error of a sum of contributions: float32 with a margin of 10; in float64 samples that were subtracted before carry theirs
ROUNDING = {torch.float64: 1e-10, torch.float32: 2e-6}


def never() -> bool:
    """Return False: the time is not limited."""
    return False


@dataclass(frozen=True, slots=True)
class Probe:
    """What the network says about inputs, M x F: slopes by the layer's output for each label, M x C x K, and by the next layer's weights.

    `witness`, of inputs and labels, is for each unit the gradient of its column of the next layer, M x K x Q, and the magnitude that
    was rounded to get it, M x K; None without a next layer.
    """

    slopes: Callable[[Tensor], Tensor]
    witness: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    outside: Callable[[Tensor], Tensor]  # how far each input is from the valid ones


@dataclass(frozen=True, slots=True)
class Update:
    """Gradients of one client by the layer's weights (K x F) and biases (K) and by the next layer's columns (K x Q), in float64.

    `dtype` is that of the client's numbers; `size` and `columns_size`, K, are magnitudes lost in a difference, such as of weights.
    """

    weight: Tensor
    bias: Tensor
    columns: Tensor | None
    dtype: torch.dtype
    size: Tensor | float = 0.0
    columns_size: Tensor | float = 0.0

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Peeled:
    """Certified samples of one batch (K x F), their labels, the factor, and what is left of the gradients."""

    inputs: Tensor
    labels: Tensor
    factor: float
    rest: Update

    __repr__ = short_repr

    @staticmethod
    def none(update: Update) -> Peeled:
        """Return no sample: everything is left."""
        labels = torch.zeros(0, dtype=torch.int64, device=update.weight.device)
        return Peeled(update.weight.new_zeros(0, update.weight.shape[1]), labels, 0.0, update)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is left of the update, and for each unit the sum of all magnitudes added and subtracted: rounding is a share of it."""

    left: Update
    size: Tensor
    columns_size: Tensor | None

    __repr__ = short_repr

    @staticmethod
    def of(update: Update) -> Ledger:
        """Return the ledger of an update of which nothing is subtracted."""
        columns = update.columns
        magnitude = None if columns is None else update.columns_size + columns.norm(dim=1)
        return Ledger(update, update.size + update.bias.abs(), magnitude)

    def error(self) -> Tensor:
        """Return the error of each unit's bias gradient."""
        return ROUNDING[self.left.dtype] * self.size

    def without(self, inputs: Tensor, pulls: Tensor, witness: tuple[Tensor, Tensor] | None) -> Ledger:
        """Return the ledger after samples with these gradients (M x K; M x K x Q and its magnitude) are subtracted."""
        left = self.left
        weight, bias, size = left.weight - pulls.mT @ inputs, left.bias - pulls.sum(0), self.size + pulls.abs().sum(0)
        if left.columns is None or self.columns_size is None or witness is None:
            return Ledger(Update(weight, bias, None, left.dtype), size, None)
        columns, magnitude = left.columns - witness[0].sum(0), self.columns_size + witness[1].sum(0)
        return Ledger(Update(weight, bias, columns, left.dtype), size, magnitude)


def subtract(whole: Ledger, inputs: Tensor, labels: Tensor, factor: float, probe: Probe) -> Ledger:
    """Return what all samples found so far leave of the update."""
    witness = None if probe.witness is None else scaled(probe.witness(inputs, labels), factor)
    return whole.without(inputs, factor * slopes_of(probe, inputs, labels), witness)


def slopes_of(probe: Probe, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of each input's loss by the layer's output, M x K."""
    return probe.slopes(inputs)[torch.arange(len(inputs), device=inputs.device), labels]


def scaled(witness: tuple[Tensor, Tensor], factor: float) -> tuple[Tensor, Tensor]:
    """Return a witness and its magnitude times the factor of the client."""
    return factor * witness[0], factor * witness[1]
