"""Trap weights: rows that few samples activate. Boenisch et al. 2023, When the curious abandon honesty, arXiv:2112.02918.

Half of a row's entries are -|z|, z ~ N(0, sigma^2), the other half the same values times -s, shuffled. For s below 1 the sum of a row
is negative, so most samples leave its unit off, and some units have one sample. It looks like an ordinary random layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.servers.manipulation import PEELING, ReadByAttack, first_relu_layer


@dataclass(frozen=True, slots=True)
class TrapWeights(ReadByAttack):
    """Make units that few samples activate: positive entries of a row are `factor` times its negative ones; biases 0.

    Read by peeling, which finds more than the division of the paper.
    """

    name: str = "trap_weights"
    factor: float = 0.95
    sigma: float = 0.5
    reader: Attack = PEELING

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1 or not self.sigma > 0:
            raise InputError(
                f"TrapWeights needs factor in (0, 1] and sigma above 0, got {self.factor} and {self.sigma}"
            )

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with trap rows in the first dense layer; public data are not used."""
        del public
        entry, _ = first_relu_layer(model, self.name)
        units, features = weights[entry.weight].shape
        half = features // 2
        size = self.sigma * random.normal(random.fold(key, "sizes"), (units, half)).abs()
        spare = -self.sigma * random.normal(random.fold(key, "spare"), (units, features - 2 * half)).abs()
        rows = torch.cat([-size, self.factor * size, spare], 1)
        order = random.uniform(random.fold(key, "order"), (units, features)).argsort(1)
        bias = weights[str(entry.bias)]
        return weights | {entry.weight: rows.gather(1, order).to(bias), str(entry.bias): torch.zeros_like(bias)}
