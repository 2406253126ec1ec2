"""The two convolutional networks that weight-update attacks are measured on.

Two times [convolution 3x3 with padding 1, activation, 2x2 average pool], then a hidden dense layer with an activation
and a dense layer to the classes. Sizes as in Zhu, Yao and Blaschko 2023, "Surrogate model extension (SME)",
arXiv:2306.00127; DLFA (Dimitrov et al. 2022, arXiv:2206.12395) attacks the same two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from leakscope.models.activations import activation_layer
from leakscope.models.settings import image_shape, positive


def cnn_mnist(*, input_shape: Sequence[int] = (1, 28, 28), classes: int = 62, activation: str = "relu") -> nn.Module:
    """Return SME's network for FEMNIST: 32 and 64 filters, 100 hidden units (3136-100-62 on 28x28)."""
    return _cnn((32, 64), 100, image_shape("cnn_mnist", input_shape, smallest=4), classes, activation)


def cnn_cifar(*, input_shape: Sequence[int] = (3, 32, 32), classes: int = 100, activation: str = "relu") -> nn.Module:
    """Return SME's network for CIFAR-100: 64 and 128 filters, 200 hidden units (8192-200-100 on 32x32)."""
    return _cnn((64, 128), 200, image_shape("cnn_cifar", input_shape, smallest=4), classes, activation)


def _cnn(
    filters: tuple[int, ...], hidden: int, shape: tuple[int, int, int], classes: int, activation: str
) -> nn.Module:
    """Return one convolution and pool per entry of `filters`, then the two dense layers."""
    channels, height, breadth = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, size in enumerate(filters, start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, size, 3, padding=1)
        layers[f"activation{number}"] = activation_layer(activation)
        layers[f"pool{number}"] = nn.AvgPool2d(2)
        channels, height, breadth = size, height // 2, breadth // 2
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(channels * height * breadth, hidden)
    layers["activation"] = activation_layer(activation)
    layers["head"] = nn.Linear(hidden, positive("classes", classes))
    return nn.Sequential(layers)
