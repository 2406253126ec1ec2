"""Tests of the biases of dense layers against their rows: soliton biases. Shariati and Alambardar Meybodi 2026.

They switch a unit on for a chosen share of the inputs: `b_j = -<W_j, m> - z_j sigma_j`, with m the mean input and sigma_j the deviation of
`<W_j, x>`. Inputs in [0, 1] have a positive mean, so these biases fall as the sums of the rows rise. Biases that training moved rise with
them. Where inputs are standardised m is about 0, but the second term is still large beside the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import takewhile

from torch import Tensor, nn

from leakscope.core.token_layers import EMBEDDINGS
from leakscope.scanning.dense_rows import dense_layers, largest
from leakscope.scanning.findings import Reading

UNITS = 16  # of a layer: the relation of fewer says little
DARKEST = 0.2  # mean input that the biases may assume; honest ones that fall with the sums are too small for it
SIGMAS = 3.0
CENTRED = EMBEDDINGS | nn.LayerNorm | nn.RMSNorm | nn.MultiheadAttention


def set_biases(module: nn.Module) -> Reading:
    """Return the largest share of the spread of a layer's row sums that its biases cancel."""
    return largest(Reading(_cancelled(rows, bias), name) for name, rows, bias in _biased(module))


def large_biases(module: nn.Module) -> Reading:
    """Return the largest median, over the units of a layer, of the absolute bias over the norm of the row."""
    return largest(
        Reading(float((bias.abs() / rows.norm(dim=1)).median()), name) for name, rows, bias in _biased(module)
    )


def _biased(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, rows and biases of the live units of dense layers.

    Layers behind an embedding, attention or a layer norm are left out: what they read is centred, and honest biases there may be large.
    """
    before = [name for name, _ in takewhile(lambda each: not isinstance(each[1], CENTRED), module.named_modules())]
    for name, rows in dense_layers(module):
        bias = module.get_submodule(name).bias
        if name in before and isinstance(bias, Tensor) and bias.shape == rows.shape[:1]:
            bias = bias.detach().float()
            live = (rows != 0).any(1) & rows.isfinite().all(1) & bias.isfinite()
            if int(live.sum()) >= UNITS:
                yield name, rows[live].double(), bias[live].double()


def _cancelled(rows: Tensor, bias: Tensor) -> float:
    """Return `1 - Var(b + t s) / Var(t s)` for the sums s of the rows and the best mean input t, less what chance explains.

    With t free this is the squared correlation, so the lower bound of that by Fisher's z is the most it can be.
    """
    sums = rows.sum(1)
    sums, bias = sums - sums.mean(), bias - bias.mean()
    together = float(bias @ sums)
    if together >= 0:
        return 0.0
    correlation = min(-together / float(bias.norm() * sums.norm()), 1 - 1e-12)
    least = math.tanh(max(0.0, math.atanh(correlation) - SIGMAS / math.sqrt(len(bias) - 3)))
    mean = max(DARKEST, float(bias @ bias) / -together)
    left = (bias + mean * sums).square().sum() / (mean * sums).square().sum()
    return max(0.0, min(least**2, 1 - float(left)))
