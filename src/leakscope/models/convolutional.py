"""Sequential convolutional networks: AlexNet and VGG16 of the SPN paper, ATS's ConvNet, SME's two small ones.

- `alexnet` and `vgg16`: Fan et al. 2020, arXiv:2006.11601, tables 4 and 5. Table 4 names no activation; torchvision's AlexNet has
  ReLU, and its dropout is not in the table. Table 5 contradicts itself: it keeps 8x8 through the pools after stages 3 and 4, and its
  hidden layer reads 4096 numbers, while 512 filters at 4x4 give 8192. We keep the sizes: pools after stages 1, 2 and 5, and a
  hidden layer of matching width; `pooled=(1, 2, 3, 4, 5)` is the original VGG16. The number of groups is not given; 32 is the
  default of Wu and He 2018, arXiv:1803.08494.
- `convnet`: Gao et al. 2021, "Privacy-preserving collaborative learning with automatic transformation search", after Geiping et al.
  2020: 2304 features for width 64 on 28x28 and 32x32.
- `cnn_mnist`, `cnn_cifar`: Zhu, Yao and Blaschko 2023 (SME), arXiv:2306.00127; DLFA (Dimitrov et al. 2022) attacks the same two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from leakscope.core.errors import InputError
from leakscope.models.settings import Shape, activation_layer, classify, image_shape, positive

ALEXNET_KERNELS = (5, 5, 3, 3, 3)
ALEXNET_FILTERS = (1, 3, 6, 4, 4)  # times `width`
ALEXNET_POOLED = (1, 2, 5)
VGG_STAGES = (2, 2, 3, 3, 3)
VGG_FILTERS = (1, 2, 4, 8, 8)  # times `width`
CONVNET_FILTERS = (1, 2, 2, 4, 4, 4, 4, 4)
CONVNET_POOLED = (6, 8)
CONVNET_POOL = 3


def alexnet(
    *, input_shape: Shape = (3, 32, 32), classes: int = 10, activation: str = "relu", width: int = 64, hidden: int = 256
) -> nn.Module:
    """Return AlexNet for small images: 64, 192, 384, 256, 256 filters, then 4096-256-10 on 32x32."""
    channels, height, breadth = image_shape("alexnet", input_shape, smallest=8)
    size = positive("width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (kernel, factor) in enumerate(zip(ALEXNET_KERNELS, ALEXNET_FILTERS, strict=True), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, size * factor, kernel, padding=kernel // 2)
        layers[f"activation{number}"] = activation_layer(activation)
        channels = size * factor
        if number in ALEXNET_POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            height, breadth = height // 2, breadth // 2
    return classify(layers, channels * height * breadth, hidden, classes, activation)


def vgg16(
    *,
    input_shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: str = "relu",
    width: int = 64,
    groups: int = 32,
    hidden: int = 256,
    pooled: Sequence[int] = (1, 2, 5),
) -> nn.Module:
    """Return VGG16 with group norm: 13 convolutions, 2x2 max pools after the stages `pooled`, 8192-256-10 on 32x32."""
    pools = _pooled_stages(pooled)
    channels, height, breadth = image_shape("vgg16", input_shape, smallest=2 ** len(pools))
    if positive("width", width) % positive("groups", groups):
        raise InputError(f"width must be a multiple of groups = {groups}, got {width}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (convolutions, factor) in enumerate(zip(VGG_STAGES, VGG_FILTERS, strict=True), start=1):
        layers[f"stage{number}"] = _stage(convolutions, channels, width * factor, groups, activation)
        channels = width * factor
        if number in pools:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            height, breadth = height // 2, breadth // 2
    return classify(layers, channels * height * breadth, hidden, classes, activation)


def _pooled_stages(pooled: Sequence[int]) -> frozenset[int]:
    chosen = frozenset(pooled)
    if len(chosen) != len(pooled) or not chosen <= set(range(1, len(VGG_STAGES) + 1)):
        raise InputError(f"pooled must be different stages out of 1 to {len(VGG_STAGES)}, got {tuple(pooled)}")
    return chosen


def _stage(convolutions: int, channels: int, filters: int, groups: int, activation: str) -> nn.Module:
    """Return 3x3 convolutions, each with group norm and an activation."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, convolutions + 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"norm{number}"] = nn.GroupNorm(groups, filters)
        layers[f"activation{number}"] = activation_layer(activation)
        channels = filters
    return nn.Sequential(layers)


def convnet(
    *, input_shape: Shape = (3, 32, 32), classes: int = 10, activation: str = "relu", width: int = 64
) -> nn.Module:
    """Return ATS's ConvNet: eight convolutions with batch norm, two 3x3 max pools, one dense layer."""
    channels, height, breadth = image_shape("convnet", input_shape, smallest=CONVNET_POOL**2)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, factor in enumerate(CONVNET_FILTERS, start=1):
        size = factor * positive("width", width)
        layers[f"conv{number}"] = nn.Conv2d(channels, size, 3, padding=1)
        layers[f"norm{number}"] = nn.BatchNorm2d(size)
        layers[f"activation{number}"] = activation_layer(activation)
        if number in CONVNET_POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(CONVNET_POOL)
            height, breadth = height // CONVNET_POOL, breadth // CONVNET_POOL
        channels = size
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * breadth, positive("classes", classes))
    return nn.Sequential(layers)


def cnn_mnist(*, input_shape: Shape = (1, 28, 28), classes: int = 62, activation: str = "relu") -> nn.Module:
    """Return SME's network for FEMNIST: 32 and 64 filters, 100 hidden units (3136-100-62 on 28x28)."""
    return _cnn((32, 64), 100, image_shape("cnn_mnist", input_shape, smallest=4), classes, activation)


def cnn_cifar(*, input_shape: Shape = (3, 32, 32), classes: int = 100, activation: str = "relu") -> nn.Module:
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
    return classify(layers, channels * height * breadth, hidden, classes, activation)
