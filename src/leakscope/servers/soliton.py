"""Soliton biases: each unit is activated by a chosen number of samples. Shariati and Alambardar Meybodi 2026.

Peeling needs units with one sample, units with two once that one is subtracted, and so on: the problem of LT codes. Their robust
soliton distribution of degrees lets the chain run to its end. Only biases change. With rows W_j and degree d_j of a batch of B, the bias
is minus the value that a share d_j / B of the inputs exceed: by public data, or for inputs uniform in [0, 1]
`b_j = -mu_j - sigma_j Phi^-1(1 - d_j/B)` with `mu_j = sum(W_j) / 2` and `sigma_j^2 = sum(W_j^2) / 12`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.servers.manipulation import PEELING, ReadByAttack, first_relu_layer

RIPPLE, FAILURE = 0.05, 0.4  # c and delta of the robust soliton, as in the paper


@dataclass(frozen=True, slots=True)
class SolitonBiases(ReadByAttack):
    """Set the first layer's biases so that a batch of `batch` samples gives units the degrees of the robust soliton; read by peeling.

    `from_data` places them by public data; without it inputs count as uniform in [0, 1] and independent.
    """

    name: str = "soliton_biases"
    batch: int = 64
    from_data: bool = True
    reader: Attack = PEELING

    def __post_init__(self) -> None:
        if self.batch < 2:
            raise InputError(f"SolitonBiases.batch must be at least 2 samples, got {self.batch}")

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with other biases in the first dense layer."""
        entry, _ = first_relu_layer(model, self.name)
        rows, name = weights[entry.weight], str(entry.bias)
        likely = robust_soliton(self.batch).cumsum(0)
        drawn = random.uniform(random.fold(key, "degrees"), (len(rows),), torch.float64)
        degrees = 1 + torch.searchsorted(likely, drawn).clamp_max(self.batch - 1)
        share = (degrees / self.batch).to(rows)
        if self.from_data:
            return weights | {name: -_exceeded(public.flatten(1) @ rows.mT, share)}
        deviation = rows.square().sum(1).div(12).sqrt()
        quantile = torch.special.ndtri((1 - share).clamp(1e-6, 1 - 1e-6))
        return weights | {name: -rows.sum(1) / 2 - deviation * quantile}


def robust_soliton(batch: int) -> Tensor:
    """Return the probabilities of the degrees 1 .. batch.

    Ideal: `1/B` at 1, `1/(d (d-1))` above. Added: `R/(d B)` below the spike at `B/R`, `R ln(R/delta)/B` on it, `R = c ln(B/delta) sqrt(B)`.
    """
    degrees = torch.arange(1, batch + 1, dtype=torch.float64)
    ideal = 1 / (degrees * (degrees - 1)).clamp_min(1)
    ideal[0] = 1 / batch
    expected = RIPPLE * math.log(batch / FAILURE) * math.sqrt(batch)
    spike = min(batch, max(1, round(batch / expected)))
    added = torch.where(degrees < spike, expected / (degrees * batch), 0.0)
    added[spike - 1] = max(0.0, expected * math.log(expected / FAILURE) / batch)
    return (ideal + added) / (ideal + added).sum()


def _exceeded(sums: Tensor, share: Tensor) -> Tensor:
    """Return for every unit the value that a share of its P sums (P x K) exceeds, midway between two of them."""
    ordered = sums.sort(0, descending=True).values
    above = (share * len(sums)).round().long().clamp(1, len(sums) - 1)[None]
    return ((ordered.gather(0, above - 1) + ordered.gather(0, above)) / 2)[0]
