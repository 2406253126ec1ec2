"""The features of a network: what its last dense layer reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.models.batch_norm import in_eval_mode


def features_of(model: Model, parameters: Tree) -> Callable[[Tensor], Tensor]:
    """Return a function from M network inputs to M rows of features, in eval mode under these parameters.

    The features are the input of the last dense layer, read by an identity in place of its weights; the output of a network that
    ends otherwise.
    """
    network, values = in_eval_mode(model), dict(parameters)
    if model.head is not None:
        weight = values[model.head.weight]
        values[model.head.weight] = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        if model.head.bias is not None:
            values[model.head.bias] = weight.new_zeros(weight.shape[1])

    def features(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            output, _ = network.apply(values, model.buffers, inputs, random.key(0, inputs.device))
        return output.flatten(1)

    return features
