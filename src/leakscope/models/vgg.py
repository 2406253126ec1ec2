"""VGG16 with group norm for pictures of 32x32, as the SPN paper's federated training uses it.

Fan et al. 2020, arXiv:2006.11601, table 5: stages of 2, 2, 3, 3, 3 convolutions of 3x3 with 64, 128, 256, 512, 512 filters,
group norm after every convolution, a hidden dense layer of 256 and a dense layer to the classes.

The table contradicts itself: it keeps 8x8 through the pools after stages 3 and 4, and its hidden layer reads 4096 numbers
(the last rows are those of table 4), while 512 filters at 4x4 give 8192. The sizes of the table are kept: pools after
stages 1, 2 and 5, and a hidden layer as wide as what reaches it. `pooled=(1, 2, 3, 4, 5)` is VGG16 as its authors
built it, which ends at 1x1. The number of groups is not said; 32 is the default of Wu and He 2018, arXiv:1803.08494.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from leakscope.core.errors import InputError
from leakscope.models.activations import activation_layer
from leakscope.models.settings import Shape, classify, image_shape, positive

STAGES = (2, 2, 3, 3, 3)
FILTERS = (1, 2, 4, 8, 8)  # times `width`


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
    pools = _stages(pooled)
    channels, height, breadth = image_shape("vgg16", input_shape, smallest=2 ** len(pools))
    if positive("width", width) % positive("groups", groups):
        raise InputError(f"width must be a multiple of groups = {groups}, got {width}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (convolutions, factor) in enumerate(zip(STAGES, FILTERS, strict=True), start=1):
        layers[f"stage{number}"] = _stage(convolutions, channels, width * factor, groups, activation)
        channels = width * factor
        if number in pools:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            height, breadth = height // 2, breadth // 2
    return classify(layers, channels * height * breadth, hidden, classes, activation)


def _stages(pooled: Sequence[int]) -> frozenset[int]:
    chosen = frozenset(pooled)
    if len(chosen) != len(pooled) or not chosen <= set(range(1, len(STAGES) + 1)):
        raise InputError(f"pooled must be different stages out of 1 to {len(STAGES)}, got {tuple(pooled)}")
    return chosen


def _stage(convolutions: int, channels: int, filters: int, groups: int, activation: str) -> nn.Module:
    """Return convolutions of 3x3, each with group norm and an activation."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, convolutions + 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"norm{number}"] = nn.GroupNorm(groups, filters)
        layers[f"activation{number}"] = activation_layer(activation)
        channels = filters
    return nn.Sequential(layers)
