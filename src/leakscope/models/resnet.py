"""ResNet20 for small images, and the smooth variant that gradient-leakage papers attack.

He et al. 2016, "Deep residual learning for image recognition", arXiv:1512.03385, section 4.2: a 3x3 stem, three stages
of three basic blocks with w, 2w and 4w filters, the mean over all positions, a dense layer. Where a block changes the
number of filters or the side, its shortcut is a 1x1 convolution with batch norm (the paper's option B).

Attacks and clients run it with batch norm in eval mode; `leakscope.models.build` sets that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from leakscope.models.activations import activation_layer
from leakscope.models.settings import image_shape, positive


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut: a(shortcut(x) + norm(conv(a(norm(conv(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.activation1 = activation_layer(activation)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.activation2 = activation_layer(activation)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        inner: Tensor = self.activation1(self.norm1(self.conv1(x)))
        out: Tensor = self.activation2(self.norm2(self.conv2(inner)) + self.shortcut(x))
        return out


def resnet20(
    *, input_shape: Sequence[int] = (3, 32, 32), classes: int = 10, activation: str = "relu", width: int = 16
) -> nn.Module:
    """Return ResNet20: stages of `width`, 2 `width` and 4 `width` filters with strides 1, 2, 2."""
    channels, _, _ = image_shape("resnet20", input_shape)
    return _resnet((1, 2, 2), channels, classes, activation, width)


def resnet20_dlg(
    *, input_shape: Sequence[int] = (3, 32, 32), classes: int = 10, activation: str = "sigmoid", width: int = 16
) -> nn.Module:
    """Return DLG's ResNet20: sigmoid instead of ReLU and no strides, so that gradients stay informative."""
    channels, _, _ = image_shape("resnet20_dlg", input_shape)
    return _resnet((1, 1, 1), channels, classes, activation, width)


def _resnet(strides: tuple[int, ...], channels: int, classes: int, activation: str, width: int) -> nn.Module:
    """Return a ResNet of one stage of three basic blocks per stride; each stage doubles the filters."""
    size = positive("width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(channels, size, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(size),
        activation=activation_layer(activation),
    )
    for number, stride in enumerate(strides):
        outputs = width * 2**number
        layers[f"stage{number + 1}"] = nn.Sequential(
            BasicBlock(size, outputs, stride, activation),
            BasicBlock(outputs, outputs, 1, activation),
            BasicBlock(outputs, outputs, 1, activation),
        )
        size = outputs
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(size, positive("classes", classes))
    return nn.Sequential(layers)
