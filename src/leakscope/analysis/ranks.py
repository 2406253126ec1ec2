"""How many unknowns of a layer's input the update leaves open: R-GAP's rank analysis, from shapes alone.

Cut the input of a layer into the patches that its weights meet, the columns of X (M numbers a patch, P patches of the whole batch). An
attacker who works backwards through the network knows the output Y and its derivative D, so with weights W (O x M) two systems:

    W X = Y   (O equations a patch)        X D^T = G, the gradient of W   (O equations a weight of a unit)

For W and D in general position, of ranks w = min(O, M) and d = min(O, P), they fix w P + M d - w d of the M P numbers of X. An input has
no more numbers than the patches cover; overlapping patches share theirs. So the rank is at most

    min(numbers covered, w P + (M - w) d)

with equality for dense layers and patches that do not overlap. What is open is at least the rest. Zhu and Blaschko 2021 (arXiv:2010.07733)
build the matrix and take its rank, for one example; a frozen layer has no second system. The derivative of single examples of a batch is
not known, so for several examples the number is kinder to the attacker than any attack. Their constraints across layers are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True, slots=True)
class LayerRank:
    """The unknowns of a layer's input over a batch, and the largest rank of the equations that the layer gives for them."""

    name: str
    unknowns: int
    rank: int

    @property
    def left(self) -> int:
        """Return how many unknowns are open at least."""
        return self.unknowns - self.rank


def layer_rank(
    name: str, layer: nn.Linear | Convolution, entering: tuple[int, ...], leaving: tuple[int, ...], batch: int
) -> LayerRank:
    """Return the rank of a layer that maps N inputs of shape `entering[1:]` to `leaving[1:]`, for a batch of that many."""
    unknowns = math.prod(entering[1:])
    if isinstance(layer, nn.Linear):
        groups, units, patch, patches, covered = (
            1,
            layer.out_features,
            layer.in_features,
            unknowns // entering[-1],
            unknowns,
        )
    else:
        groups = layer.groups
        units, channels = layer.out_channels // groups, layer.in_channels // groups
        patch = channels * math.prod(layer.kernel_size)
        axes = [_axis(layer, place, entering[2 + place], leaving[2 + place]) for place in range(len(layer.kernel_size))]
        covered = channels * math.prod(pixels for pixels, _ in axes)
        patches = math.prod(places for _, places in axes)
    patches *= batch
    wide, seen = min(units, patch), min(units, patches) if layer.weight.requires_grad else 0
    return LayerRank(name, batch * unknowns, groups * min(batch * covered, wide * patches + (patch - wide) * seen))


def _axis(layer: Convolution, place: int, size: int, outputs: int) -> tuple[int, int]:
    """Return along one axis how many pixels the kernel covers, and how many of its places touch a pixel."""
    kernel, stride, dilation = (int(each[place]) for each in (layer.kernel_size, layer.stride, layer.dilation))
    if isinstance(layer.padding, str):
        border = dilation * (kernel - 1) // 2 if layer.padding == "same" else 0
    else:
        border = int(layer.padding[place])
    met = [
        {at for k in range(kernel) if 0 <= (at := o * stride - border + k * dilation) < size} for o in range(outputs)
    ]
    return len(set().union(*met)), sum(map(bool, met))
