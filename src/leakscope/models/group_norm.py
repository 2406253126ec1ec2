"""GroupNorm in the place of batch norm: each example is normalised by itself, and there are no running statistics."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

MOST_GROUPS = 32  # of Wu and He 2018, arXiv:1803.08494


def with_group_norm(module: nn.Module) -> nn.Module:
    """Return a copy of a module with GroupNorm for every batch norm, with the same weights under the same names.

    The groups are the most, up to 32, that divide the channels into groups of at least two.
    """
    if isinstance(module, _BatchNorm):
        return _group_norm(module)
    module = copy.deepcopy(module)
    replaced: dict[int, nn.Module] = {}  # a layer that is used in two places stays one layer
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, _BatchNorm):
            module.set_submodule(name, replaced.setdefault(id(layer), _group_norm(layer)))
    return module


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    groups = max(g for g in range(1, MOST_GROUPS + 1) if channels % g == 0 and (g == 1 or channels // g > 1))
    layer = nn.GroupNorm(groups, channels, norm.eps, norm.affine)
    layer.weight, layer.bias = copy.deepcopy(norm.weight), copy.deepcopy(norm.bias)
    return layer.train(norm.training)
