"""Adam on trees moves as torch's Adam does."""

from __future__ import annotations

import torch

from leakscope.core import random
from leakscope.learning.tree_adam import Adam


def test_it_follows_torch() -> None:
    start = random.normal(random.key(1), (5,), torch.float64)
    theirs = start.clone().requires_grad_()
    optimiser, own, ours = torch.optim.Adam([theirs], lr=0.01), Adam(0.01), {"w": start}
    for step in range(20):
        gradient = random.normal(random.key(2 + step), (5,), torch.float64)
        theirs.grad = gradient.clone()
        optimiser.step()
        ours = own.step(ours, {"w": gradient})
    torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-12)
