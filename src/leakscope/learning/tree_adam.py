"""Adam on trees, for weights that a server moves by gradients it was sent (Kingma and Ba 2015, arXiv:1412.6980)."""

from __future__ import annotations

import torch

from leakscope.core.tree import Tree


class Adam:
    """Adam as torch's, on trees; one for everything that moves together."""

    def __init__(self, rate: float) -> None:
        """Begin with nothing remembered."""
        self.rate, self.taken = rate, 0
        self.first: Tree = {}
        self.second: Tree = {}

    def step(self, values: Tree, gradient: Tree) -> Tree:
        """Return the values after one step against the gradient."""
        self.taken += 1
        moved = {}
        for name, value in values.items():
            g = gradient[name]
            self.first[name] = 0.9 * self.first.get(name, torch.zeros_like(g)) + 0.1 * g
            self.second[name] = 0.999 * self.second.get(name, torch.zeros_like(g)) + 0.001 * g * g
            mean, spread = self.first[name] / (1 - 0.9**self.taken), self.second[name] / (1 - 0.999**self.taken)
            moved[name] = value - self.rate * mean / (spread.sqrt() + 1e-8)
        return moved
