"""The linear system B x = W of a dense layer and one sample, from its bias and weight gradients.

For z = A x + c the gradients are dL/dA_mn = dL/dc_m * x_n, so for every choice of one unit m(n) per input n the square system

    B_I x = W_I,    B_I = diag(dL/dc_m(n)),    W_I = (dL/dA_m(n),n)

has the input as its solution. Fan et al. 2020, arXiv:2006.11601, theorem 2.1 and lemma 5.1 with its remark.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.errors import InputError


def strongest_unit(bias: Tensor, inputs: int) -> Tensor:
    """Return the unit with the largest bias gradient as the index of every input: ... x N from ... x M."""
    return bias.abs().argmax(-1, keepdim=True).expand(*bias.shape[:-1], inputs)


def select(weight: Tensor, bias: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """Return (diagonal of B_I, W_I), ... x N each, of gradients ... x M x N and ... x M for units m(n), ... x N."""
    if weight.shape[:-1] != bias.shape or units.shape != (*bias.shape[:-1], weight.shape[-1]):
        raise InputError(
            f"a dense layer has gradients ... x M x N and ... x M and a unit for each input, "
            f"got {tuple(weight.shape)}, {tuple(bias.shape)} and {tuple(units.shape)}"
        )
    return bias.gather(-1, units), weight.gather(-2, units.unsqueeze(-2)).squeeze(-2)


def solve(diagonal: Tensor, right: Tensor) -> Tensor:
    """Return x with B_I x = W_I; NaN where B_I is singular."""
    singular = (diagonal == 0).any(-1, keepdim=True)
    return torch.where(singular, torch.nan, right / torch.where(diagonal == 0, 1.0, diagonal))
