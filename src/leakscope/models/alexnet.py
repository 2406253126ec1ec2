"""AlexNet for pictures of 32x32, as the SPN paper's federated training uses it.

Fan et al. 2020, "Rethinking privacy preserving deep learning: how to evaluate and thwart privacy attacks",
arXiv:2006.11601, table 4: five convolutions, 2x2 max pools after the first, the second and the last, a hidden dense
layer of 256 and a dense layer to the classes. The table names no activation; torchvision's AlexNet, which it changes, has
ReLU. Its dropout is not in the table and not here.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakscope.models.activations import activation_layer
from leakscope.models.settings import Shape, classify, image_shape, positive

KERNELS = (5, 5, 3, 3, 3)
FILTERS = (1, 3, 6, 4, 4)  # times `width`
POOLED = (1, 2, 5)


def alexnet(
    *, input_shape: Shape = (3, 32, 32), classes: int = 10, activation: str = "relu", width: int = 64, hidden: int = 256
) -> nn.Module:
    """Return AlexNet for small pictures: 64, 192, 384, 256, 256 filters, then 4096-256-10 on 32x32."""
    channels, height, breadth = image_shape("alexnet", input_shape, smallest=8)
    size = positive("width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (kernel, factor) in enumerate(zip(KERNELS, FILTERS, strict=True), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, size * factor, kernel, padding=kernel // 2)
        layers[f"activation{number}"] = activation_layer(activation)
        channels = size * factor
        if number in POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            height, breadth = height // 2, breadth // 2
    return classify(layers, channels * height * breadth, hidden, classes, activation)
