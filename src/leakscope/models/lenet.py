"""The LeNets of gradient-leakage work: three convolutions (DLG), four (CPL), and the classical one with tanh (SME).

In the first two, each convolution has `width` filters of 5x5, padding 2 and an activation; a dense layer reads the flattened
features. Stride 2 turns side n into ceil(n / 2), so 32x32 gives 12 * 8 * 8 = 768 features and 28x28 gives 12 * 7 * 7 = 588. With
pooling, a stride of 2 becomes stride 1 and a 2x2 pool in ceil mode after the activation: the number of features stays the same.

Zhu et al. 2019, "Deep leakage from gradients", arXiv:1906.08935; Wei et al. 2020, "A framework for evaluating gradient leakage
attacks in federated learning" (CPL), arXiv:2004.10397. Both draw every weight and bias from U(-0.5, 0.5): see
`leakscope.models.initialise.Uniform`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from torch import nn

from leakscope.core.registry import lookup
from leakscope.core.signature import settings_of
from leakscope.models.dropout import KeyedDropout
from leakscope.models.settings import Shape, activation_layer, image_shape, positive, probability

POOLINGS: dict[str, Callable[[], nn.Module] | None] = {
    "none": None,
    "average": lambda: nn.AvgPool2d(2, ceil_mode=True),
    "max": lambda: nn.MaxPool2d(2, ceil_mode=True),
}


class LeNetSettings(TypedDict, total=False):
    """The settings of `lenet_dlg` and `lenet_cpl`."""

    input_shape: Shape
    classes: int
    activation: str
    pooling: str
    width: int
    dropout: float


def lenet_sme(
    *, input_shape: Shape = (1, 28, 28), classes: int = 62, activation: str = "tanh", filters: Sequence[int] = (6, 16)
) -> nn.Module:
    """Return SME's LeNet: two 5x5 convolutions, each with tanh and a padded 2x2 average pool, then 400-120-84-62 on 28x28.

    The authors add a softmax: use the loss 'softmax_cross_entropy' at rate 0.4. Zhu et al. 2023, arXiv:2306.00127, appendix G.
    """
    channels, height, breadth = image_shape("lenet_sme", input_shape, smallest=12)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, size in enumerate(filters, start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, positive("every entry of filters", size), 5)
        layers[f"activation{number}"] = activation_layer(activation)
        layers[f"pool{number}"] = nn.AvgPool2d(2, padding=1)
        channels, height, breadth = size, (height - 4) // 2 + 1, (breadth - 4) // 2 + 1
    layers["flatten"] = nn.Flatten()
    features = channels * height * breadth
    for number, size in enumerate((120, 84), start=1):
        layers[f"dense{number}"] = nn.Linear(features, size)
        layers[f"dense_activation{number}"] = activation_layer(activation)
        features = size
    layers["head"] = nn.Linear(features, positive("classes", classes))
    return nn.Sequential(layers)


def _lenet(
    name: str,
    strides: tuple[int, ...],
    *,
    input_shape: Shape = (3, 32, 32),
    classes: int = 100,
    activation: str = "sigmoid",
    pooling: str = "none",
    width: int = 12,
    dropout: float = 0.0,
) -> nn.Module:
    """Return convolutions of these strides, dropout if any, and the dense layer."""
    channels, height, breadth = image_shape(name, input_shape)
    pool = lookup(POOLINGS, pooling, "pooling")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, stride in enumerate(strides, start=1):
        step = stride if pool is None else 1
        layers[f"conv{number}"] = nn.Conv2d(channels, positive("width", width), 5, stride=step, padding=2)
        layers[f"activation{number}"] = activation_layer(activation)
        if pool is not None and stride == 2:
            layers[f"pool{number}"] = pool()
        channels, height, breadth = width, -(-height // stride), -(-breadth // stride)
    layers["flatten"] = nn.Flatten()
    if probability("dropout", dropout) > 0:
        layers["dropout"] = KeyedDropout(dropout)
    layers["head"] = nn.Linear(width * height * breadth, positive("classes", classes))
    return nn.Sequential(layers)


@settings_of(_lenet)
def lenet_dlg(**settings: Unpack[LeNetSettings]) -> nn.Module:
    """Return DLG's LeNet: three convolutions of strides 2, 2, 1 and a dense layer."""
    return _lenet("lenet_dlg", (2, 2, 1), **settings)


@settings_of(_lenet, classes=106)
def lenet_cpl(**settings: Unpack[LeNetSettings]) -> nn.Module:
    """Return CPL's LeNet: four convolutions of strides 2, 2, 1, 1 and a dense layer; also known as DLNet."""
    return _lenet("lenet_cpl", (2, 2, 1, 1), **settings)
