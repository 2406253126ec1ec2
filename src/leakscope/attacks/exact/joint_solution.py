"""Certified samples solved together, by least squares over all units that they explain, and bounds of their errors."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.exact.ledger import ROUNDING, Ledger, Probe, slopes_of
from leakscope.core.tree import TINY

MOVED = 1e-4  # most that a sample moves when all are solved together, relative to its size
NEAR = 1e-3  # error of a sample, relative to its size, above which it is not certified; two that are nearer are one
SINGULAR = 1e-13


def solve_together(
    whole: Ledger, inputs: Tensor, labels: Tensor, errors: Tensor, factor: float, probe: Probe
) -> tuple[Tensor, Tensor]:
    """Return the samples as least squares over all units that they explain, and bounds of their errors, relative to their size.

    `errors` are those of the first samples. Without a bound, errors grow from round to round: a sample is read from what inexact ones left.
    """
    pulls = factor * slopes_of(probe, inputs, labels)
    left = whole.without(inputs, pulls, None)
    errors = torch.cat([errors, errors.new_full((len(inputs) - len(errors),), torch.inf)])
    explained = (left.left.bias.abs() <= left.error()) & (pulls.abs().amax(0) > 0)
    # opposite samples cancel in a bias gradient, but not in the weights
    explained &= left.left.weight.norm(dim=1) <= MOVED * left.size * inputs.norm(dim=1).max().clamp_min(1.0)
    system = (pulls / left.size)[:, explained].mT
    if len(system) < len(inputs):
        return inputs, errors
    rows = whole.left.weight[explained] / left.size[explained, None]
    inverse, lengths = _inverse(system)
    solved = inverse @ rows / lengths[:, None]
    bounds = ROUNDING[left.left.dtype] * inverse.norm(dim=1) / lengths
    near = (solved - inputs).norm(dim=1) <= MOVED * inputs.norm(dim=1).clamp_min(1.0)
    # one that moves far is held by too few units
    solved, errors = torch.where(near[:, None], solved, inputs), torch.where(near, bounds, errors)
    after = whole.without(solved, factor * slopes_of(probe, solved, labels), None)
    # the system itself has the errors of the samples: in float64 they are often larger than those of the quotients
    return solved if _residual(after, explained) < _residual(left, explained) else inputs, errors


def _residual(ledger: Ledger, units: Tensor) -> float:
    """Return the largest part of a unit's gradients that is left, of these units."""
    left, size = ledger.left, ledger.size[units]
    return float(torch.maximum(left.bias[units].abs(), left.weight[units].norm(dim=1)).div(size).amax())


def errors_of(system: Tensor, rounding: float) -> Tensor:
    """Return the error of each unknown of least squares whose right sides have errors `rounding`: its row of the pseudo-inverse."""
    inverse, lengths = _inverse(system)
    errors: Tensor = rounding * inverse.norm(dim=1) / lengths
    return errors


def _inverse(system: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pseudo-inverse of a system with columns of length 1, and their lengths.

    Singular values are not cut off but kept at `SINGULAR` of the largest: unknowns that the system does not determine get large errors, and
    others are not affected.
    """
    lengths = system.norm(dim=0).clamp_min(TINY**10)
    left, values, right = torch.linalg.svd(system / lengths, full_matrices=False)
    return (right.mT / values.clamp_min(SINGULAR * values[0])) @ left.mT, lengths
