"""ResNet20 for small images, the smooth variant that gradient-leakage papers attack, and SME's ResNet8.

He et al. 2016, "Deep residual learning for image recognition", arXiv:1512.03385, section 4.2: a 3x3 stem, three stages of three
basic blocks with w, 2w and 4w filters, global average pooling, a dense layer. Where a block changes the number of filters or the
side, its shortcut is a 1x1 convolution with batch norm (the paper's option B). Batch norm is in eval mode
(`leakscope.models.build`); with `batch_statistics` it always uses the current batch (the positions of one image, for a batch of
one), as in train mode. `resnet20_cpl` has the settings that the CPL paper leaves open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypedDict, Unpack

from torch import Tensor, nn

from leakscope.core.registry import lookup
from leakscope.core.signature import settings_of
from leakscope.models.settings import Shape, activation_layer, image_shape, positive

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "running": nn.BatchNorm2d,
    "batch": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "none": lambda _: nn.Identity(),
}
POOLS: dict[str, Callable[[], nn.Module]] = {
    "global": lambda: nn.AdaptiveAvgPool2d(1),
    "four": lambda: nn.AvgPool2d(4, ceil_mode=True),
    "none": nn.Identity,
}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut: a(shortcut(x) + norm(conv(a(norm(conv(x))))))."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, activation: str, norm: str = "running"
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = lookup(NORMS, norm, "norm")(out_channels)
        self.activation1 = activation_layer(activation)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = lookup(NORMS, norm, "norm")(out_channels)
        self.activation2 = activation_layer(activation)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                lookup(NORMS, norm, "norm")(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        inner: Tensor = self.activation1(self.norm1(self.conv1(x)))
        out: Tensor = self.activation2(self.norm2(self.conv2(inner)) + self.shortcut(x))
        return out


class ResNetSettings(TypedDict, total=False):
    """The settings of `resnet20` and `resnet20_dlg` except `batch_statistics`."""

    input_shape: Shape
    classes: int
    activation: str
    width: int


def _resnet(
    name: str,
    strides: tuple[int, ...],
    *,
    norm: str,
    pool: str = "global",
    input_shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: str = "relu",
    width: int = 16,
) -> nn.Module:
    """Return a ResNet of one stage of three basic blocks per stride; each stage doubles the filters."""
    channels, height, breadth = image_shape(name, input_shape)
    size = positive("width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(channels, size, 3, padding=1, bias=False),
        norm=lookup(NORMS, norm, "norm")(size),
        activation=activation_layer(activation),
    )
    for number, stride in enumerate(strides):
        outputs = width * 2**number
        layers[f"stage{number + 1}"] = nn.Sequential(
            BasicBlock(size, outputs, stride, activation, norm),
            BasicBlock(outputs, outputs, 1, activation, norm),
            BasicBlock(outputs, outputs, 1, activation, norm),
        )
        size, height, breadth = outputs, -(-height // stride), -(-breadth // stride)
    layers["pool"] = lookup(POOLS, pool, "pool")()
    layers["flatten"] = nn.Flatten()
    places = {"global": 1, "four": -(-height // 4) * -(-breadth // 4), "none": height * breadth}[pool]
    layers["head"] = nn.Linear(size * places, positive("classes", classes))
    return nn.Sequential(layers)


@settings_of(_resnet, without=("norm", "pool"))
def resnet20(*, batch_statistics: bool = False, **settings: Unpack[ResNetSettings]) -> nn.Module:
    """Return ResNet20: stages of `width`, 2 `width` and 4 `width` filters with strides 1, 2, 2."""
    return _resnet("resnet20", (1, 2, 2), norm="batch" if batch_statistics else "running", **settings)


@settings_of(resnet20, activation="sigmoid")
def resnet20_dlg(*, batch_statistics: bool = False, **settings: Unpack[ResNetSettings]) -> nn.Module:
    """Return DLG's ResNet20: sigmoid instead of ReLU and no strides, so that gradients stay informative.

    With running statistics twenty sigmoids erase the image: the gradients of any two differ by less than 1e-5. Attack it with
    `batch_statistics` and PyTorch's initial weights.
    """
    return _resnet("resnet20_dlg", (1, 1, 1), norm="batch" if batch_statistics else "running", **settings)


@settings_of(_resnet, activation="tanh")
def resnet20_cpl(
    *, stride: int = 2, norm: str = "running", pool: str = "none", **settings: Unpack[ResNetSettings]
) -> nn.Module:
    """Return a reading of CPL's ResNet20, of which the paper gives neither activation, strides, norm nor pool.

    `norm` is running, batch (statistics of the current batch) or none; `pool` is global, four (4x4 windows, as in DLG's code) or none.
    With a global pool every position has the same influence on the loss, so the gradient hardly depends on where a pixel is. The
    defaults are the form in which CPL recovers most (item `cpl-readings`).
    """
    return _resnet("resnet20_cpl", (1, stride, stride), norm=norm, pool=pool, **settings)


def resnet8(
    *,
    input_shape: Shape = (1, 28, 28),
    classes: int = 62,
    activation: str = "relu",
    width: int = 32,
    hidden: int = 1000,
) -> nn.Module:
    """Return SME's ResNet8: one basic block of 32, 64 and 128 filters each, then two dense layers (2048-1000-62 on 28x28).

    A 2x2 average pool (padding 1) precedes them; no activation is between them. Zhu et al. 2023, arXiv:2306.00127, appendix G.
    """
    channels, height, breadth = image_shape("resnet8", input_shape)
    size = positive("width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(channels, size, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(size),
        activation=activation_layer(activation),
    )
    for number, stride in enumerate((1, 2, 2)):
        outputs = width * 2**number
        layers[f"block{number + 1}"] = BasicBlock(size, outputs, stride, activation)
        size, height, breadth = outputs, -(-height // stride), -(-breadth // stride)
    layers["pool"] = nn.AvgPool2d(2, padding=1)
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(size * (height // 2 + 1) * (breadth // 2 + 1), positive("hidden", hidden))
    layers["head"] = nn.Linear(hidden, positive("classes", classes))
    return nn.Sequential(layers)
