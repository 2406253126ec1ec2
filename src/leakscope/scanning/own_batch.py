"""Tests on a sample of the client's own data: gradient norms of single examples and of classes, and the loss.

D-SNR: for every weight tensor the largest gradient norm of an example over the sum of the others; in an honest model no example drowns
the rest. Garov et al. 2024 (SEER), arXiv:2306.03013. Fishing (Wen et al. 2022, arXiv:2202.00580) first leaves a gradient to one class
only, which the same ratio over classes shows. Gradients are those of eval mode: batch statistics would mix examples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.core.errors import InputError, first_line
from leakscope.core.short_repr import short_repr
from leakscope.learning.losses import LOSSES, one_hot
from leakscope.scanning.dense_rows import largest
from leakscope.scanning.findings import Reading

Criterion = str | Callable[[Tensor, Tensor], Tensor]
CLASSES = 3  # of a sample, below which no class can be compared with the others


@dataclass(frozen=True, slots=True, eq=False)
class OwnBatch:
    """Gradient norms of every example by tensor, and the labels."""

    norms: dict[str, Tensor]
    labels: Tensor

    __repr__ = short_repr

    def d_snr(self) -> Reading:
        """Return the largest norm of an example over the sum of the others, largest of the tensors."""
        return largest(_ratio(name, norms) for name, norms in self.norms.items())

    def class_d_snr(self) -> Reading:
        """Return the same of the mean norms of classes; nothing with fewer than three classes."""
        numbers = self.labels.unique() if self.labels.ndim == 1 and not self.labels.is_floating_point() else []
        if len(numbers) < CLASSES:
            return Reading(None)
        of = [self.labels == number for number in numbers]
        return largest(
            _ratio(name, torch.stack([norms[each].mean() for each in of])) for name, norms in self.norms.items()
        )


def _ratio(name: str, norms: Tensor) -> Reading:
    """Return the largest norm over the sum of the others; nothing where no example has a gradient."""
    most = float(norms.max())
    rest = float(norms.sum()) - most
    if most == 0:
        return Reading(None)
    return Reading(most / rest if 0 < rest < math.inf else math.inf, name)  # NaN and infinity count as infinite


def read_batch(module: nn.Module, inputs: Tensor, labels: Tensor, loss: Criterion) -> OwnBatch:
    """Return gradient norms of single examples, one after the other, which every network can do."""
    net = copy.deepcopy(module).eval()
    weights = {name: value for name, value in net.named_parameters() if value.requires_grad and value.numel() > 1}
    norms: dict[str, list[float]] = {name: [] for name in weights}
    if not weights:
        return OwnBatch({}, labels)
    for x, y in zip(inputs.split(1), labels.split(1), strict=True):
        value = _loss(loss, run_network(net, x), y)
        gradients = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            norms[name].append(0.0 if gradient is None else float(gradient.norm()))
    return OwnBatch({name: torch.tensor(each) for name, each in norms.items()}, labels)


def relative_loss(module: nn.Module, inputs: Tensor, labels: Tensor, loss: Criterion) -> float | None:
    """Return the mean loss of a sample over that of a uniform guess; None without classes.

    Batch norms use the sample's statistics, as in training: after a first round running statistics may still be far off.
    """
    net = copy.deepcopy(module).eval()
    for layer in net.modules():
        if isinstance(layer, _BatchNorm):
            layer.train()
    with torch.no_grad():
        output = run_network(net, inputs)
        uniform = math.log(output.shape[-1]) if _is_cross_entropy(loss) and output.shape[-1] > 1 else None
        return None if uniform is None else float(_loss(loss, output, labels)) / uniform


def run_network(net: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of a network as one tensor; those of `transformers` are their logits."""
    like = next((value for value in net.parameters() if value.is_floating_point()), x)
    x = x.to(like.device, like.dtype) if x.is_floating_point() else x.to(like.device)
    try:
        output: object = net(x)
    except Exception as error:  # a user's network may raise anything
        raise InputError(f"the model cannot run on inputs of shape {tuple(x.shape[1:])}: {first_line(error)}") from None
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise InputError(f"the model must return a tensor, got {type(output).__name__}")
    return output


def _is_cross_entropy(loss: Criterion) -> bool:
    return loss == "cross_entropy" or isinstance(loss, nn.CrossEntropyLoss) or loss is F.cross_entropy


def _loss(loss: Criterion, output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of some examples; with one class number a token, outputs are N x T x classes."""
    labels = labels.to(output.device)
    tokens = output.ndim == 3 and labels.shape == output.shape[:2]
    try:
        if _is_cross_entropy(loss):
            return F.cross_entropy(output.movedim(-1, 1) if tokens else output, labels)
        if isinstance(loss, str):
            rows = labels if labels.shape == output.shape else one_hot(labels, output.shape[-1], output.dtype)
            return LOSSES[loss](output, rows).mean()
        return loss(output, labels).mean()
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"labels of shape {tuple(labels.shape[1:])} do not fit outputs of shape {tuple(output.shape[1:])}: "
            f"{first_line(error)}"
        ) from None
