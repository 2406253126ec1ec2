"""The first weights of ATS's networks, on which the accuracy score depends much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.models import MODELS, build, from_module

Settings = Mapping[str, int | float | str]


def first_module(network: str, shape: Sequence[int], classes: int, settings: Settings, *, seed: int = 0) -> nn.Module:
    """Return a network of the catalogue with the first weights of ATS: convolutions from Kaiming's normal by fan-out.

    The rest is as PyTorch draws it. In train mode; the statistics of norm layers are 0 and 1.
    """
    first = build(network, shape, classes, settings, seed=seed).parameters
    key = random.fold(random.key(seed), "kaiming")
    with torch.random.fork_rng(devices=[]):
        module = MODELS[network](input_shape=shape, classes=classes, **settings)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(first[name])
        for prefix, layer in module.named_modules():
            if isinstance(layer, nn.Conv2d):
                drawn = random.normal(random.fold(key, prefix), layer.weight.shape)
                layer.weight.copy_(drawn * math.sqrt(2 / layer.weight[:, 0].numel()))
    return module


def first_model(network: str, shape: Sequence[int], classes: int, settings: Settings, *, seed: int = 0) -> Model:
    """Return `first_module` as a model in eval mode: the untrained network of the accuracy score."""
    module = first_module(network, shape, classes, settings, seed=seed)
    return from_module(module.eval(), input_shape=shape, name=network)
