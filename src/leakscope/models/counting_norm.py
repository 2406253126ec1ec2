"""Batch norm in train mode for many clients at once.

`nn.BatchNorm2d` in train mode writes shared running statistics in place, which vmap refuses, and counts padding. (torch's
`replace_all_batch_norm_modules_` drops the statistics.) These layers return them as each client's buffers and ignore padding:

    mean = sum_i m_i x_i / n,   var = sum_i m_i (x_i - mean)^2 / n,   n = sum_i m_i times the positions of a picture
    running <- (1 - momentum) running + momentum (mean, var n / (n - 1))

Ioffe and Szegedy 2015, arXiv:1502.03167, with torch's rules. Where n = 1 torch raises; these layers return their bias and keep
the running variance. As in torch, the running statistics have no derivative.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.core.model import Mode
from leakscope.core.padding import channel_statistics, real_examples


class _CountsRealExamples(nn.modules.batchnorm._BatchNorm):
    """The forward pass of the three layers below."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input; in eval mode by the running statistics."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if not self.training:
            return super().forward(x)
        present = _present(x)
        mean, var, count = channel_statistics(x, present)
        if self.track_running_stats:
            self._remember(mean.detach(), var.detach(), count)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scaled = (x - mean.reshape(shape)) * (var + self.eps).rsqrt().reshape(shape)
        scaled = torch.where(present.reshape(-1, *[1] * (x.ndim - 1)), scaled, 0)  # padding may be far from real values
        return scaled * self.weight.reshape(shape) + self.bias.reshape(shape) if self.affine else scaled

    def _remember(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            raise InputError("a batch norm that tracks running statistics has lost its buffers")
        tracked = self.num_batches_tracked + 1
        step = self.momentum if self.momentum is not None else 1 / tracked.to(mean.dtype)
        unbiased = torch.where(count > 1, var * count / (count - 1).clamp_min(1), self.running_var)
        self.running_mean = self.running_mean + step * (mean - self.running_mean)
        self.running_var = self.running_var + step * (unbiased - self.running_var)
        self.num_batches_tracked = tracked

    def _get_name(self) -> str:
        """Return the name of torch's layer: the architecture is the same."""
        return type(self).__name__.removeprefix("Counting")


class CountingBatchNorm1d(_CountsRealExamples, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that can train under vmap."""


class CountingBatchNorm2d(_CountsRealExamples, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that can train under vmap."""


class CountingBatchNorm3d(_CountsRealExamples, nn.BatchNorm3d):
    """`nn.BatchNorm3d` that can train under vmap."""


_KINDS: dict[type[nn.Module], type[_CountsRealExamples]] = {
    nn.BatchNorm1d: CountingBatchNorm1d,
    nn.BatchNorm2d: CountingBatchNorm2d,
    nn.BatchNorm3d: CountingBatchNorm3d,
}


def count_real_examples(network: nn.Module) -> None:
    """Let every batch norm of `network` in train mode run under vmap, in place; parameters, buffers and names are unchanged."""
    for layer in network.modules():
        if layer.training and type(layer) in _KINDS:
            layer.__class__ = _KINDS[type(layer)]


def put_norms(network: nn.Module, mode: Mode) -> nn.Module:
    """Return a copy of `network` whose batch norms are in a mode, for many clients under vmap; `network` itself if they are."""
    trains = mode == "train"
    if all(layer.training == trains and not (trains and type(layer) in _KINDS) for layer in _norms(network)):
        return network
    network = copy.deepcopy(network)
    for layer in _norms(network):
        layer.train(trains)
    count_real_examples(network)
    return network


def _norms(network: nn.Module) -> Iterator[nn.Module]:
    return (layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))


def _present(x: Tensor) -> Tensor:
    """Return which rows of a batch are real."""
    mask = real_examples()
    present = torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if mask is None else mask
    if present.shape != x.shape[:1]:
        raise InputError(
            f"batch norm received {x.shape[0]} rows, but the batch has {present.shape[0]} examples; it cannot distinguish padding"
        )
    return present
