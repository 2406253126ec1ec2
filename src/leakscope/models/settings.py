"""Checks of network settings, used by the builders."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup

Shape = Sequence[int]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
}


def positive(field: str, value: int) -> int:
    """Return `value`, an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{field} must be a whole number of at least 1, got {value!r}")
    return value


def probability(field: str, value: float) -> float:
    """Return `value`, a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{field} must be a number in [0, 1), got {value!r}")
    return float(value)


def activation_layer(name: str) -> nn.Module:
    """Return a new activation layer.

    >>> activation_layer("tanh")
    Tanh()
    """
    return lookup(ACTIVATIONS, name, "activation")()


def classify(layers: dict[str, nn.Module], features: int, hidden: int, classes: int, activation: str) -> nn.Sequential:
    """Return the layers followed by a hidden dense layer and the dense layer to the classes."""
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(features, positive("hidden", hidden))
    layers["activation"] = activation_layer(activation)
    layers["head"] = nn.Linear(hidden, positive("classes", classes))
    return nn.Sequential(OrderedDict(layers))


def shape_of(field: str, value: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one input: integers of at least 1."""
    if not isinstance(value, Sequence) or not value:
        raise InputError(f"{field} must be the shape of ONE input, such as (1, 28, 28), got {value!r}")
    return tuple(positive(f"every entry of {field}", size) for size in value)


def image_shape(network: str, value: Sequence[int], smallest: int = 1) -> tuple[int, int, int]:
    """Return (channels, height, width) with both sides at least `smallest`."""
    shape = shape_of("input_shape", value)
    if len(shape) != 3:
        raise InputError(f"{network} takes images: input_shape must be (channels, height, width), got {shape}")
    channels, height, width = shape
    if min(height, width) < smallest:
        raise InputError(f"{network} needs images of at least {smallest}x{smallest}, got input_shape {shape}")
    return channels, height, width
