"""A network: any function of the input shape, the number of classes and settings that returns an nn.Module."""

from collections.abc import Sequence

from torch import nn


def small_conv(*, input_shape: Sequence[int], classes: int, width: int = 8) -> nn.Module:
    """One convolution of stride 2, a sigmoid and a dense layer."""
    channels, height, across = input_shape
    size = width * ((height + 1) // 2) * ((across + 1) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2, padding=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(size, classes)
    )
