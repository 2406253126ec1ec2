"""How far a simulated update is from the observed one: pure functions of two trees, and the objective built on one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.view import View
from leakscope.core.errors import InputError
from leakscope.core.tree import TINY, Tree, dot, norm, squared_norm, subtract

Distance = Callable[[Tree, Tree], Tensor]
SHORTEST = 1e-36  # squared length below which a direction means nothing in float32


def squared_l2(simulated: Tree, observed: Tree) -> Tensor:
    """Return `||simulated - observed||^2` (DLG, CPL)."""
    return squared_norm(subtract(simulated, observed))


def l2(simulated: Tree, observed: Tree) -> Tensor:
    """Return `||simulated - observed||`; its slope at 0 is cut off, so that a perfect match has a gradient."""
    return (squared_l2(simulated, observed) + TINY**2).sqrt()


def l1(simulated: Tree, observed: Tree) -> Tensor:
    """Return the sum of absolute differences."""
    return torch.stack([(simulated[name] - observed[name]).abs().sum() for name in simulated]).sum()


def cosine(simulated: Tree, observed: Tree) -> Tensor:
    """Return 1 - cos(simulated, observed), each read as one long vector.

    0 when they point the same way, 2 when they oppose. Blind to scale, so clipping the whole update does not hinder it.
    Geiping et al. 2020, arXiv:2003.14053.
    """
    lengths = [squared_norm(tree).clamp_min(SHORTEST).sqrt() for tree in (simulated, observed)]
    return 1 - dot(simulated, observed) / lengths[0] / lengths[1]


def cosine_per_tensor(simulated: Tree, observed: Tree) -> Tensor:
    """Return the mean over tensors of 1 - cos, so that small layers count as much as large ones."""
    each = [cosine({name: simulated[name]}, {name: observed[name]}) for name in simulated]
    return torch.stack(each).mean()


DISTANCES: dict[str, Distance] = {
    "squared_l2": squared_l2,
    "l2": l2,
    "l1": l1,
    "cosine": cosine,
    "cosine_per_tensor": cosine_per_tensor,
}


@dataclass(frozen=True, slots=True)
class Match:
    """The distance between simulated and observed update, with optional per-layer weights and a known mask.

    `weights` maps parameter names to factors on both sides (names not listed count 1). `masked` compares only the
    coordinates that `Knowledge.mask` says were sent.
    """

    distance: Distance = squared_l2
    weights: tuple[tuple[str, float], ...] = ()
    masked: bool = False

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch of one trial."""
        simulated, observed = view.simulated.update, view.observed
        if self.weights:
            factors = dict(self.weights)
            unknown = sorted(set(factors) - set(observed))
            if unknown:
                raise InputError(f"Match.weights names no parameter of the update: {', '.join(unknown)}")
            simulated = {name: value * factors.get(name, 1.0) for name, value in simulated.items()}
            observed = {name: value * factors.get(name, 1.0) for name, value in observed.items()}
        if self.masked:
            mask = view.knowledge.mask
            if mask is None:
                raise InputError(
                    "Match.masked needs Knowledge.mask: the attacker was not told which coordinates were sent"
                )
            simulated = {name: value * mask[name] for name, value in simulated.items()}
            observed = {name: value * mask[name] for name, value in observed.items()}
        return self.distance(simulated, observed)


def relative_error(simulated: Tree, observed: Tree) -> Tensor:
    """Return `||simulated - observed|| / ||observed||`, for reports."""
    return norm(subtract(simulated, observed)) / norm(observed).clamp_min(TINY)
