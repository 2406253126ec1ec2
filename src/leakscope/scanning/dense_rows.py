"""Tests of the rows of dense layers: equal ones (imprint) and mirrored ones (trap weights).

Imprint: all rows are one functional of the input and the biases are its quantiles, so that differences of neighbouring units hold one
example. Fowl et al. 2022, arXiv:2110.13057. Trap weights: each row has as many positive as negative weights, the positive ones
`s` times the negative ones in another order, so that few examples activate the unit. Boenisch et al. 2023, arXiv:2112.02918.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from leakscope.core.token_layers import EMBEDDINGS
from leakscope.scanning.findings import Reading

FEATURES = 8  # with fewer inputs rows are alike by chance
UNITS = 4
PARALLEL = 0.999
MIRRORED = 1e-3  # of the positive weights, left over by the best multiple of the negative ones
MOST_ROWS = 2048  # of a layer that are compared, evenly spaced


def dense_layers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight (outputs x inputs) of every dense layer with enough rows; `transformers` stores some as columns."""
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(layer, EMBEDDINGS):
            rows = weight.detach().float()
            rows = rows.mT if type(layer).__name__ == "Conv1D" else rows
            if len(rows) >= UNITS and rows.shape[1] >= FEATURES:
                yield name, rows


def _spaced(rows: Tensor) -> Tensor:
    return rows[:: -(-len(rows) // MOST_ROWS)]


def largest(readings: Iterator[Reading]) -> Reading:
    """Return the reading with the largest value; one without a value if there is none."""
    values = [reading for reading in readings if reading.value is not None]
    return max(values, key=lambda reading: reading.value or 0.0, default=Reading(None))


def equal_rows(module: nn.Module) -> Reading:
    """Return the largest share of a layer's rows that are multiples of one row."""
    return largest(Reading(_parallel_share(_spaced(rows)), name) for name, rows in dense_layers(module))


def _parallel_share(rows: Tensor) -> float:
    """Return the size of the largest group of parallel rows over the number of rows that are not 0."""
    sizes = rows.norm(dim=1)
    live = (sizes > 0) & sizes.isfinite()
    rows = rows[live] / sizes[live, None]
    if len(rows) < UNITS:
        return 0.0
    group = int(((rows @ rows.mT).abs() > PARALLEL).sum(1).max())
    return group / len(rows) if group > 1 else 0.0


def mirrored_rows(module: nn.Module) -> Reading:
    """Return the largest share of a layer's rows whose sorted positive weights are a multiple of the sorted negative ones."""
    return largest(Reading(_mirrored_share(_spaced(rows)), name) for name, rows in dense_layers(module))


def _mirrored_share(rows: Tensor) -> float:
    """Return the share of rows where `p = s n` once sorted, p the positive weights and n the negative ones.

    Of an odd number of weights one is left over. It is among the k largest or not, so p matches n up to k and n moved by one behind it.
    """
    up, down = (each.clamp_min(0).sort(1, descending=True).values for each in (rows, -rows))
    numbers = (up > 0).sum(1), (down > 0).sum(1)
    swap = (numbers[0] > numbers[1])[:, None]
    up, down = torch.where(swap, down, up), torch.where(swap, up, down)
    odd = (numbers[0] - numbers[1]).abs()
    varied = down.amax(1) > 1.1 * down.where(down > 0, torch.inf).amin(1)  # signs alone are mirrored by chance
    fitting = (odd <= 1) & (torch.minimum(*numbers) >= FEATURES // 2) & varied
    if not bool(fitting.any()):
        return 0.0
    up, down, odd = up[fitting], down[fitting], odd[fitting]
    moved = torch.cat([down[:, 1:], torch.zeros_like(down[:, :1])], 1)
    apart = torch.full_like(up[:, 0], torch.inf)
    for first in (down, moved):  # the largest of n may be the one left over
        multiple = up[:, :1] / first[:, :1]
        same, shifted = ((up - multiple * each).square() for each in (down, moved))
        before = torch.cat([torch.zeros_like(same[:, :1]), same.cumsum(1)], 1)
        behind = torch.cat([shifted.flip(1).cumsum(1).flip(1), torch.zeros_like(same[:, :1])], 1)
        best = torch.where(odd == 1, (before + behind).amin(1), before[:, -1])
        apart = torch.minimum(apart, best.sqrt() / up.norm(dim=1))
    return int((apart < MIRRORED).sum()) / len(rows)
