"""Adam on trees moves as torch's Adam does."""

from __future__ import annotations

import torch

from leakscope.core import random
from leakscope_papers.spn import tree_adam


def test_it_follows_torch() -> None:
    start = random.normal(random.key(1), (5,), torch.float64)
    theirs = start.clone().requires_grad_()
    optimiser, ours = torch.optim.Adam([theirs], lr=0.01), {"w": start}
    moments = tree_adam.begin(ours, torch.zeros(()))
    for number in range(20):
        gradient = random.normal(random.key(2 + number), (5,), torch.float64)
        theirs.grad = gradient.clone()
        optimiser.step()
        ours, moments = tree_adam.step(ours, {"w": gradient}, moments, 0.01)
    torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-12)


def test_each_entry_may_have_taken_steps_of_its_own() -> None:
    values, gradient = ({"w": random.normal(random.key(s), (2, 3, 4), torch.float64)} for s in (1, 2))
    moments = tree_adam.begin(values, torch.zeros(1, 3))
    early = tree_adam.Moments(moments.first, moments.second, torch.tensor([[0.0, 5.0, 0.0]], dtype=torch.float64))
    plain, mixed = (tree_adam.step(values, gradient, m, 0.01)[0]["w"] for m in (moments, early))
    assert torch.equal(plain[:, [0, 2]], mixed[:, [0, 2]])
    assert (plain[:, 1] != mixed[:, 1]).all()
