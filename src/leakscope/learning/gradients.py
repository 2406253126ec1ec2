"""The gradient one client step computes, for one trial."""

from __future__ import annotations

from torch import Tensor

from leakscope.core.differentiate import gradient_and_aux
from leakscope.core.model import Model
from leakscope.core.padding import counting
from leakscope.core.tree import Tree
from leakscope.learning.losses import Loss, masked_mean


def loss_and_gradient(
    model: Model,
    loss: Loss,
    parameters: Tree,
    buffers: Tree,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    key: Tensor,
) -> tuple[Tree, Tensor, Tensor, Tree]:
    """Return (gradient, loss, output, buffers after) of the mean loss over the unmasked examples."""

    def value(weights: Tree) -> tuple[Tensor, tuple[Tensor, Tensor, Tree]]:
        with counting(mask):
            output, after = model.apply(weights, buffers, inputs, key)
        mean = masked_mean(loss(output, targets), mask)
        return mean, (mean, output, after)

    gradient, (mean, output, after) = gradient_and_aux(value, parameters)
    return gradient, mean, output, after
