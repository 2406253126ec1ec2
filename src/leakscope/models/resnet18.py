"""ResNet18 with the layers, names and shapes of torchvision's, so that its state_dict loads.

He et al. 2016, arXiv:1512.03385, table 1: a 7x7 stem with stride 2 and a max pool, four stages of two basic blocks with 64 to 512
filters. `stem="small"` has a 3x3 stem without stride and pool instead, as is usual for 32x32 images.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from leakscope.core.registry import lookup
from leakscope.models.settings import image_shape, positive


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        out: Tensor = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.downsample(x))
        return out


def resnet18(
    *, input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, width: int = 64, stem: str = "imagenet"
) -> nn.Module:
    """Return ResNet18; `stem` is 'imagenet' or 'small'."""
    channels, _, _ = image_shape("resnet18", input_shape)
    size = positive("width", width)
    stems = {"imagenet": (7, 2, nn.MaxPool2d(3, stride=2, padding=1)), "small": (3, 1, nn.Identity())}
    kernel, stride, pool = lookup(stems, stem, "stem")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, size, kernel, stride=stride, padding=kernel // 2, bias=False),
        bn1=nn.BatchNorm2d(size),
        relu=nn.ReLU(),
        maxpool=pool,
    )
    for number, stride in enumerate((1, 2, 2, 2)):
        filters = width * 2**number
        layers[f"layer{number + 1}"] = nn.Sequential(Residual(size, filters, stride), Residual(filters, filters, 1))
        size = filters
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(size, positive("classes", classes))
    return nn.Sequential(layers)
