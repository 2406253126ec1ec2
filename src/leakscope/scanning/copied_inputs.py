"""Tests of layers that copy their input: one-hot filters, identities, few-hot embeddings, dead branches; and of outsized weights.

A server that wants a picture to reach a dense layer unchanged sets convolutions to one-hot filters and residual branches to 0 (Boenisch
et al. 2023), one kernel a channel (LOKI, Zhao et al. 2024), or attention to the identity (Fowl et al. 2023; MineGrad). Transmit-SNR:
Garov et al. 2024 (SEER), arXiv:2306.03013.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from leakscope.core.token_layers import EMBEDDINGS
from leakscope.models.low_rank import LowRank
from leakscope.scanning.dense_rows import FEATURES, dense_layers, largest
from leakscope.scanning.findings import Reading

PLACES = 4  # numbers of a filter, below which one is large by chance
FILTERS = 2
FEW = 2
ENERGY = 0.999  # of a row in its largest numbers


def transmit_snr(module: nn.Module) -> Reading:
    """Return, for the first convolution, the median over its live filters of the largest weight over the sum of the others."""
    name, filters = next(_filters(module), ("", None))
    return Reading(None) if filters is None else Reading(float(_peaks(filters).median()), name)


def transmitting_filters(module: nn.Module) -> Reading:
    """Return the largest share of a convolution's live filters that copy the same place: more there than elsewhere together."""
    return largest(Reading(_copied_share(filters), name) for name, filters in _filters(module))


def _filters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the filters of every convolution (live ones x inputs x places), in the order of the modules."""
    for name, layer in module.named_modules():
        if isinstance(layer, _ConvNd) and not layer.transposed:
            filters = layer.weight.detach().float().flatten(2)
            filters = filters[filters.flatten(1).abs().amax(1) > 0]
            if filters.shape[2] >= PLACES and len(filters) >= FILTERS:
                yield name, filters


def _peaks(filters: Tensor) -> Tensor:
    """Return the largest weight of each filter over the sum of its others; infinite for a one-hot one."""
    weights = filters.flatten(1).abs()
    peak = weights.amax(1)
    return peak / (weights.sum(1) - peak).clamp_min(0)


def _copied_share(filters: Tensor) -> float:
    """Return the share of filters that copy one input at the commonest place."""
    copying = filters[_peaks(filters) > 1]
    places = Counter((copying.flatten(1).abs().argmax(1) % filters.shape[2]).tolist())
    return max(places.values(), default=0) / len(filters)


def identity_weights(module: nn.Module) -> Reading:
    """Return the largest |cos(block, I)| over the square blocks of dense layers: |trace| / (sqrt(d) |block|)."""

    def readings() -> Iterator[Reading]:
        for name, rows in _matrices(module):
            size = min(rows.shape)
            if size >= FEATURES and max(rows.shape) % size == 0:
                wide = rows if len(rows) >= rows.shape[1] else rows.mT
                blocks = wide.reshape(-1, size, size)
                scale = size**0.5 * blocks.flatten(1).norm(dim=1).clamp_min(1e-30)
                yield Reading(float((blocks.diagonal(dim1=1, dim2=2).sum(1).abs() / scale).max()), name)

    return largest(readings())


def _matrices(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of dense layers and of attention, whose three matrices are stored as one."""
    yield from dense_layers(module)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None:
            yield name, layer.in_proj_weight.detach().float()


def few_hot_rows(module: nn.Module) -> Reading:
    """Return the largest share of an embedding's live rows whose energy is in at most two numbers."""

    def readings() -> Iterator[Reading]:
        for name, layer in module.named_modules():
            if isinstance(layer, EMBEDDINGS) and layer.embedding_dim >= FEATURES:
                energy = layer.weight.detach().float().square()
                energy = energy[energy.sum(1) > 0]
                if len(energy) >= FILTERS:
                    few = energy.topk(FEW, dim=1).values.sum(1) >= ENERGY * energy.sum(1)
                    yield Reading(float(few.float().mean()), name)

    return largest(readings())


def dead_branches(module: nn.Module, previous: Mapping[str, Tensor] | None = None) -> Reading:
    """Return the share of layers whose weights are all 0: convolutions and dense layers, and norms that were not 0 last round.

    Norms at 0 begin the branches of many fresh ResNets, and so does the outer factor of a low-rank adapter, which is not counted.
    """
    counted, dead = 0, []
    for name, layer in module.named_modules():
        weight, key = getattr(layer, "weight", None), f"{name}.weight" if name else "weight"
        if not isinstance(weight, Tensor) or not weight.numel() or isinstance(layer, EMBEDDINGS):
            continue
        mixes = isinstance(layer, _ConvNd | nn.Linear) and not _is_adapter(module, name)
        if mixes or (previous is not None and key in previous and bool(previous[key].any())):
            counted += 1
            dead += [] if bool(weight.any()) else [name]
    return Reading(len(dead) / counted, dead[0] if dead else "") if counted else Reading(None)


def _is_adapter(module: nn.Module, name: str) -> bool:
    """Return whether a layer is the outer factor of a low-rank adapter, which starts at 0: ours, or that of `peft`."""
    parts = name.split(".")
    ours = parts[-1] == "outer" and isinstance(module.get_submodule(".".join(parts[:-1])), LowRank)
    return ours or "lora_B" in parts


def largest_weight(module: nn.Module) -> Reading:
    """Return the largest absolute value of a parameter; NaN and infinity count as infinite."""
    values = ((name, value.detach().float()) for name, value in module.named_parameters() if value.numel())
    return largest(Reading(float(torch.nan_to_num(value, torch.inf).abs().max()), name) for name, value in values)
