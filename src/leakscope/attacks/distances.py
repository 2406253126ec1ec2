"""Distances between a simulated and an observed update: pure functions of two trees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core.tree import TINY, Tree, dot, scale, squared_norm, subtract

Distance = Callable[[Tree, Tree], Tensor]
SHORTEST = 1e-36  # squared length below which a direction is meaningless in float32
LEAST_SUM, LEAST_SHARE, LEAST_RATIO = (
    1e-30,
    1e-12,
    1e-6,
)  # of absolute values, of one share, and of two shares: finite in float32


def squared_l2(simulated: Tree, observed: Tree) -> Tensor:
    """Return `||simulated - observed||^2` (DLG, CPL)."""
    return squared_norm(subtract(simulated, observed))


def l2(simulated: Tree, observed: Tree) -> Tensor:
    """Return `||simulated - observed||`, smoothed near 0 so that a perfect match has a gradient."""
    return (squared_l2(simulated, observed) + TINY**2).sqrt()


def l2_per_tensor(simulated: Tree, observed: Tree) -> Tensor:
    """Return the sum over tensors of `l2` (GradInversion)."""
    return torch.stack([l2({name: simulated[name]}, {name: observed[name]}) for name in simulated]).sum()


def l1(simulated: Tree, observed: Tree) -> Tensor:
    """Return the sum of absolute differences."""
    return torch.stack([(simulated[name] - observed[name]).abs().sum() for name in simulated]).sum()


def cosine(simulated: Tree, observed: Tree) -> Tensor:
    """Return 1 - cos(simulated, observed), each read as one long vector (Geiping et al. 2020, arXiv:2003.14053).

    0 when they point the same way, 2 when they oppose. Invariant to scale, so clipping the whole update does not hinder it.
    """
    lengths = [squared_norm(tree).clamp_min(SHORTEST).sqrt() for tree in (simulated, observed)]
    return 1 - dot(simulated, observed) / lengths[0] / lengths[1]


def cosine_per_tensor(simulated: Tree, observed: Tree) -> Tensor:
    """Return the mean over tensors of 1 - cos, so that small layers count as much as large ones."""
    each = [cosine({name: simulated[name]}, {name: observed[name]}) for name in simulated]
    return torch.stack(each).mean()


def angle(simulated: Tree, observed: Tree) -> Tensor:
    """Return the squared distance between the two updates, each scaled to length 1: `2 (1 - cos)`.

    Avoids the cancellation of `1 - cos`: in float32 it has no values between 0 and 6e-8, where matches of LeNet's gradients end.
    """
    lengths = [squared_norm(tree).clamp_min(SHORTEST).sqrt() for tree in (simulated, observed)]
    return squared_l2(scale(simulated, 1 / lengths[0]), scale(observed, 1 / lengths[1]))


def angle_per_tensor(simulated: Tree, observed: Tree) -> Tensor:
    """Return the mean over tensors of `angle`: invariant to clipping each tensor separately."""
    each = [angle({name: simulated[name]}, {name: observed[name]}) for name in simulated]
    return torch.stack(each).mean()


def disagreement(simulated: Tree, observed: Tree) -> Tensor:
    """Return the share of the simulated update's energy that has the wrong sign, averaged over tensors.

    With s the observed signs: `mean over tensors of sum max(0, -s g)^2 / sum g^2`. 0 where no sign is wrong, hence at the truth.
    Invariant to the positive scale of each tensor; coordinates observed as 0 do not count.
    """
    each = []
    for name, value in simulated.items():
        wrong = torch.relu(-value * torch.sign(observed[name]))
        each.append(squared_norm({name: wrong}) / squared_norm({name: value}).clamp_min(SHORTEST))
    return torch.stack(each).mean()


def entropy(simulated: Tree, observed: Tree) -> Tensor:
    """Return the Jensen-Shannon divergence of the two updates, each read as shares of its absolute sum, in nats.

    With p and q the shares, coordinates of either sign apart: `sum p log(p / m) / 2 + sum q log(q / m) / 2`, m = (p + q) / 2. 0 when the
    updates point the same way, log 2 when no coordinate has the same sign in both. Invariant to scale. CPL names such a distance as an
    alternative and gives no formula.
    """
    shares = [_shares(tree) for tree in (simulated, observed)]
    p, q = ({n: torch.cat([v.relu().flatten(), (-v).relu().flatten()]) for n, v in each.items()} for each in shares)
    each = [_excess(p[name], q[name]) + _excess(q[name], p[name]) for name in p]
    return torch.stack(each).sum() / 2


def _shares(tree: Tree) -> Tree:
    whole = torch.stack([value.abs().sum() for value in tree.values()]).sum()
    return {name: value / whole.clamp_min(LEAST_SUM) for name, value in tree.items()}


def _excess(p: Tensor, q: Tensor) -> Tensor:
    """Return `sum p log(p / m)`, with the logarithm of a number near 1 by its distance from 1."""
    return (p * torch.log1p(((p - q) / (p + q + LEAST_SHARE)).clamp_min(LEAST_RATIO - 1))).sum()


DISTANCES: dict[str, Distance] = {
    "squared_l2": squared_l2,
    "l2": l2,
    "l2_per_tensor": l2_per_tensor,
    "l1": l1,
    "cosine": cosine,
    "cosine_per_tensor": cosine_per_tensor,
    "angle": angle,
    "angle_per_tensor": angle_per_tensor,
    "disagreement": disagreement,
    "entropy": entropy,
}
FLOORED = (squared_l2, l2)
SCALED = (squared_l2, l2, l2_per_tensor, l1)  # those that depend on the scale of an update

PER_TENSOR: dict[Distance, Distance] = {
    cosine: cosine_per_tensor,
    angle: angle_per_tensor,
}  # directions, and the same for each tensor


def power_of(distance: Distance) -> int:
    """Return the power of an update's scale that a distance grows with; 0 for directions and signs."""
    return 2 if distance is squared_l2 else int(distance in SCALED)
