"""The eight-layer ConvNet that transformation policies are measured on beside ResNet20.

Eight times [convolution 3x3 with padding 1, batch norm, activation] with w, 2w, 2w, 4w, 4w, 4w, 4w and 4w filters, a 3x3 max
pool after the sixth and the eighth, and a dense layer (2304 features for w = 64 on 28x28 and 32x32). Gao et al. 2021,
"Privacy-preserving collaborative learning with automatic transformation search", after Geiping et al. 2020.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from leakscope.models.activations import activation_layer
from leakscope.models.settings import image_shape, positive

FILTERS = (1, 2, 2, 4, 4, 4, 4, 4)
POOLED = (6, 8)
POOL = 3


def convnet(
    *, input_shape: Sequence[int] = (3, 32, 32), classes: int = 10, activation: str = "relu", width: int = 64
) -> nn.Module:
    """Return ATS's ConvNet: eight convolutions with batch norm, two 3x3 max pools, one dense layer."""
    channels, height, breadth = image_shape("convnet", input_shape, smallest=POOL**2)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, factor in enumerate(FILTERS, start=1):
        size = factor * positive("width", width)
        layers[f"conv{number}"] = nn.Conv2d(channels, size, 3, padding=1)
        layers[f"norm{number}"] = nn.BatchNorm2d(size)
        layers[f"activation{number}"] = activation_layer(activation)
        if number in POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(POOL)
            height, breadth = height // POOL, breadth // POOL
        channels = size
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * breadth, positive("classes", classes))
    return nn.Sequential(layers)
