"""Why some batches mix: what the gradient of one dense layer reveals about its inputs.

With inputs x_i, outputs o_i = W x_i + b and errors e_i = d loss_i / d o_i, the gradient of the mean loss over N samples is

    dL/dW = 1/N sum_i e_i x_i^T         dL/db = 1/N sum_i e_i.

Row c is a mixture of the inputs with weights e_ic. Rows separate samples whose errors point in different directions; if the
errors are parallel, every row holds the same mixture. See docs/explanation/mixing.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.learning.losses import Loss


def output_errors(output: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """Return e_i = d loss_i / d o_i of every sample, N x C."""
    errors: Tensor = torch.func.vmap(torch.func.grad(loss))(output, target)
    return errors


def alignment(errors: Tensor) -> Tensor:
    """Return the mean |cos| between the errors of two samples of a batch (N x C): 0 separate, 1 fully mixed."""
    samples = errors.shape[-2]
    if samples < 2:
        raise InputError(f"alignment needs at least 2 samples, got {samples}")
    unit = errors / errors.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(errors.dtype).tiny)
    cosine = (unit @ unit.mT).abs()
    between: Tensor = cosine.sum((-2, -1)) - samples
    return between / (samples * (samples - 1))


def dense_gradient(weight: Tensor, bias: Tensor, inputs: Tensor, target: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return (dL/dW, dL/db) of the mean loss of a dense layer on N x D inputs."""
    errors = output_errors(inputs @ weight.mT + bias, target, loss)
    return errors.mT @ inputs / len(inputs), errors.mean(0)


def turned(inputs: Tensor, angle: float) -> Tensor:
    """Return at least three inputs (N x D) rotated among themselves about their mean: other inputs with the same sum and products.

    The first three samples are rotated by `angle` about the direction (1, 1, 1), an orthogonal mixture Q with Q 1 = 1, which
    keeps the sum s = sum x_i and second moment M = sum x_i x_i^T. With MSE and equal labels y the gradient of a dense layer,

        dL/dW = 2/(CN) (W M + (b - y) s^T)        dL/db = 2/(CN) (W s + N (b - y)),

    depends on M and s alone and is the same for every angle.
    """
    if inputs.ndim != 2 or len(inputs) < 3:
        raise InputError(f"turned needs at least 3 inputs N x D, got shape {tuple(inputs.shape)}")
    cos, sin = math.cos(angle), math.sin(angle)
    same, other = (1 + 2 * cos) / 3, (1 - cos) / 3
    lift, drop = other + sin / 3**0.5, other - sin / 3**0.5
    turn = inputs.new_tensor([[same, drop, lift], [lift, same, drop], [drop, lift, same]])
    return torch.cat([turn @ inputs[:3], inputs[3:]])
