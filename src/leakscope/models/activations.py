"""The activations a network can be built with; every builder reads its `activation` setting from this table."""

from __future__ import annotations

from torch import nn

from leakscope.core.registry import lookup

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
}


def activation_layer(name: str) -> nn.Module:
    """Return a new activation layer.

    >>> activation_layer("tanh")
    Tanh()
    """
    return lookup(ACTIVATIONS, name, "activation")()
