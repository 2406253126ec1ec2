"""Layers whose backward pass yields the gradient of every example of a batch, instead of their sum.

For an example n with input x_n and output gradient g_n:

    conv2d       dW_n = x_n * g_n,                        db_n = sum of g_n over positions
    linear       dW_n = g_n x_n^T,                        db_n = g_n
    batch norm   dgamma_n = sum of g_n xhat_n,            dbeta_n = sum of g_n        (by running statistics)

A convolution followed by a batch norm is one convolution with weights s W and bias beta + s (b - mean), s = gamma / sqrt(var +
eps). With R_n = x_n * g_n, the gradient by the scaled weights, channel by channel:

    dW_n = s R_n,    dgamma_n = (<R_n, W> + (b - mean) sum of g_n) / sqrt(var + eps),    dbeta_n = sum of g_n,    db_n = s sum of g_n

since <R_n, W> is the sum over positions of g_n times the convolution of x_n with W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Take = Callable[[Tensor, Tensor], None]  # a parameter and its gradient for every example
Settings = tuple[list[int], list[int], list[int]]  # stride, padding, dilation of a convolution
FEW_POSITIONS = 64  # up to here columns and one product beat a grouped convolution
BACKWARD = torch.ops.aten.convolution_backward


def side(length: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return the number of kernel positions along a side.

    >>> side(28, 3, 2, 1, 1)
    14
    """
    return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def weight_gradients(g: Tensor, x: Tensor, weight: Tensor, settings: Settings) -> Tensor:
    """Return x_n * g_n for every example, N x the weight's shape, in the fastest memory layout."""
    examples = len(x)
    if g[0, 0].numel() <= FEW_POSITIONS:
        products = g.flatten(2) @ _columns(x, g.shape[2:], weight.shape[2:], settings)
        return products.reshape(examples, len(weight), *weight.shape[2:], weight.shape[1]).permute(0, 1, 4, 2, 3)
    wide = weight.new_empty(examples * len(weight), *weight.shape[1:])  # the gradient needs only its shape
    one, out = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
    grouped: Tensor = BACKWARD(out, one, wide, None, *settings, False, [0, 0], examples, [False, True, False])[1]
    return grouped.reshape(examples, *weight.shape)


def _columns(x: Tensor, places: torch.Size, kernel: torch.Size, settings: Settings) -> Tensor:
    """Return the kernel's input at every position, N x positions x (kernel positions times channels), copied in runs of channels."""
    (sy, sx), (py, px), (dy, dx) = settings
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, px, px, py, py)).contiguous()
    n, row, column, one = padded.stride()
    shape = (len(x), *places, *kernel, x.shape[1])
    windows = padded.as_strided(shape, (n, row * sy, column * sx, row * dy, column * dx, one))
    return windows.reshape(len(x), places[0] * places[1], -1)


def folded(weight: Tensor, bias: Tensor | None, norm: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return weights and bias of a convolution with a following batch norm: gamma, beta, mean and 1 / sqrt(var + eps)."""
    gamma, beta, mean, inverse = norm
    scale, centred = gamma * inverse, -mean if bias is None else bias - mean
    return weight * scale[:, None, None, None], torch.addcmul(beta, centred, scale)


def input_gradient(g: Tensor, x: Tensor, weight: Tensor, settings: Settings) -> Tensor:
    """Return the gradient of a convolution by its input."""
    gradient: Tensor = BACKWARD(g, x, weight, None, *settings, False, [0, 0], 1, [True, False, False])[0]
    return gradient


class Conv(torch.autograd.Function):
    """An ungrouped convolution."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, take: Take, settings: Settings
    ) -> Tensor:
        """Return the convolution; `anchor` only triggers a backward pass."""
        del anchor
        ctx.save_for_backward(x, weight, bias)
        ctx.take, ctx.settings = take, settings
        return torch.conv2d(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by x."""
        x, weight, bias = ctx.saved_tensors
        g = g.contiguous()
        if bias is not None:
            ctx.take(bias, g.sum((2, 3)))
        ctx.take(weight, weight_gradients(g, x, weight, ctx.settings))
        by_x = input_gradient(g, x, weight, ctx.settings) if ctx.needs_input_grad[0] else None
        return by_x, *(None,) * 5


class ConvNorm(torch.autograd.Function):
    """A convolution and the batch norm after it, as one convolution."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        layer: tuple[Tensor, Tensor | None, Settings],
        norm: tuple[Tensor, ...],
        anchor: Tensor,
        take: Take,
    ) -> Tensor:
        """Return the normalised convolution; `norm` is gamma, beta, mean and 1 / sqrt(var + eps)."""
        del anchor
        weight, bias, settings = layer
        scaled, shift = folded(weight, bias, norm)
        ctx.save_for_backward(x, scaled)
        ctx.take, ctx.layer, ctx.norm = take, layer, norm
        return torch.conv2d(x, scaled, shift, *settings)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by x."""
        (x, scaled), (weight, bias, settings), (gamma, beta, mean, inverse) = ctx.saved_tensors, ctx.layer, ctx.norm
        g, scale, centred = g.contiguous(), gamma * inverse, -mean if bias is None else bias - mean
        by_scaled, total = weight_gradients(g, x, scaled, settings), g.sum((2, 3))
        product = torch.einsum("ncijk,cijk->nc", by_scaled, weight)
        ctx.take(gamma, torch.addcmul(product, total, centred) * inverse)
        ctx.take(beta, total)
        if bias is not None:
            ctx.take(bias, total * scale)
        ctx.take(weight, by_scaled.mul_(scale[:, None, None, None]))
        return input_gradient(g, x, scaled, settings) if ctx.needs_input_grad[0] else None, *(None,) * 4


class Linear(torch.autograd.Function):
    """A dense layer on one vector per example."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, take: Take) -> Tensor:
        """Return x W^T + b."""
        del anchor
        ctx.save_for_backward(x, weight, bias)
        ctx.take = take
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by x."""
        x, weight, bias = ctx.saved_tensors
        ctx.take(weight, g[:, :, None] * x[:, None, :])
        if bias is not None:
            ctx.take(bias, g)
        return g @ weight if ctx.needs_input_grad[0] else None, None, None, None, None


class Norm(torch.autograd.Function):
    """y = (x - mean) inverse gamma + beta, per channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: tuple[Tensor, ...], anchor: Tensor, take: Take) -> Tensor:
        """Return the normalised input; `norm` is gamma, beta, mean and 1 / sqrt(var + eps)."""
        del anchor
        gamma, beta, mean, inverse = norm
        ctx.save_for_backward(x)
        ctx.take, ctx.norm = take, norm
        scale = gamma * inverse
        return torch.addcmul((beta - mean * scale)[:, None, None], x, scale[:, None, None])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by x."""
        (x,), (gamma, beta, mean, inverse) = ctx.saved_tensors, ctx.norm
        total = g.sum((2, 3))
        ctx.take(gamma, ((g * x).sum((2, 3)) - mean * total) * inverse)
        ctx.take(beta, total)
        return g * (gamma * inverse)[:, None, None] if ctx.needs_input_grad[0] else None, None, None, None
