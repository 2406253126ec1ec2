"""Networks of dense layers on the flattened input, for tables and images."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from leakscope.core.errors import InputError
from leakscope.models.settings import activation_layer, positive, shape_of


def linear(*, input_shape: Sequence[int] = (1, 28, 28), classes: int = 10) -> nn.Module:
    """Return one dense layer on the flattened input: softmax regression."""
    features = math.prod(shape_of("input_shape", input_shape))
    head = nn.Linear(features, positive("classes", classes))
    return nn.Sequential(OrderedDict[str, nn.Module](flatten=nn.Flatten(), head=head))


def mlp(
    *,
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    hidden: Sequence[int] = (256,),
    activation: str = "relu",
) -> nn.Module:
    """Return dense layers of the widths `hidden`, each with an activation, then a dense layer to the classes."""
    if not isinstance(hidden, Sequence) or not hidden:
        raise InputError(f"hidden must be a list of widths such as (256,), got {hidden!r}; for none, use 'linear'")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    size = math.prod(shape_of("input_shape", input_shape))
    for number, width in enumerate(hidden, start=1):
        layers[f"dense{number}"] = nn.Linear(size, positive("every entry of hidden", width))
        layers[f"activation{number}"] = activation_layer(activation)
        size = width
    layers["head"] = nn.Linear(size, positive("classes", classes))
    return nn.Sequential(layers)


def mlp_sme(
    *, input_shape: Sequence[int] = (1, 28, 28), classes: int = 62, hidden: Sequence[int] = (1000, 1000)
) -> nn.Module:
    """Return SME's MLP: 784-1000-1000-62 with ReLU after every layer, the logits too (Zhu et al. 2023, appendix G).

    Because of the last ReLU, labels cannot be read from the last layer's gradient.
    """
    module = mlp(input_shape=input_shape, classes=classes, hidden=hidden)
    module.add_module("output", nn.ReLU())
    return module
