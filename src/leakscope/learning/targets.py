"""Targets of a caller's own loss as unknowns of an attack: what they are, and which free numbers stand for them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

EDGE = 0.05  # distance of a fitted probability from 0 and 1, so that its logit can still move


class TargetKind(enum.Enum):
    """What a target is: a class at every place, labels that apply or not, or numbers."""

    CLASSES = "classes"
    LABELS = "labels"
    VALUES = "values"


@dataclass(frozen=True, slots=True)
class Targets:
    """What an attacker knows of the targets it searches: their kind, and the shape of one example's targets as probabilities or numbers.

    Free numbers u stand for class probabilities `softmax(u)` over dimension 1, label probabilities `sigmoid(u)` or values
    `middle + spread u`; `middle` and `spread` are set for each trial when a search begins.
    """

    kind: TargetKind
    shape: tuple[int, ...]
    middle: Tensor | float = 0.0
    spread: Tensor | float = 1.0

    def of(self, free: Tensor) -> Tensor:
        """Return the targets of ONE trial that free numbers N x shape stand for."""
        if self.kind is TargetKind.CLASSES:
            return free.softmax(1)
        return free.sigmoid() if self.kind is TargetKind.LABELS else self.middle + self.spread * free

    def decided(self, targets: Tensor) -> Tensor:
        """Return T x N targets as the data has them: class numbers, labels 0 or 1, or values."""
        if self.kind is TargetKind.CLASSES:
            return targets.argmax(2)
        return (targets > 0.5).to(targets.dtype) if self.kind is TargetKind.LABELS else targets

    def before_fit(self, output: Tensor) -> Tensor:
        """Return the targets of ONE trial that say nothing: equal probabilities, or the network's output (zeros if the shapes differ)."""
        shape = (len(output), *self.shape)
        if self.kind is TargetKind.CLASSES:
            return output.new_full(shape, 1 / self.shape[0])
        if self.kind is TargetKind.LABELS:
            return output.new_full(shape, 0.5)
        return output.reshape(shape) if output.numel() == output.new_empty(shape).numel() else output.new_zeros(shape)

    def free(self, targets: Tensor) -> Tensor:
        """Return the free numbers of ONE trial that stand for fitted targets, the middle of values."""
        if self.kind is TargetKind.VALUES:
            return torch.zeros_like(targets)
        inside = targets.clamp(EDGE, 1 - EDGE)
        return inside.log() if self.kind is TargetKind.CLASSES else inside.logit()
