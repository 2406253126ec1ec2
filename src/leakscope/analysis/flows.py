"""Gradient flows in few dimensions: where SME's idea is a theorem, and where it fails.

Proposition 4.1 (Zhu et al. 2023, arXiv:2306.00127): let w(t) follow `w' = -grad l(w)` in the plane, from w_0 to w_T, with
`<grad l(w(t)), w_0 - w_T> >= 0` all the way. Then some w_hat on the line between them has its gradient parallel to w_0 - w_T,
and pointing the same way if l is convex. Corollary C.1: for convex l in any dimension `<grad l(w_hat), w_0 - w_T> >= 0` on the whole
line. In three dimensions a flow can wind: on the helix below every gradient on the line has the cosine 1 / sqrt 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core.errors import InputError

Slope = Callable[[Tensor], Tensor]


def follow(slope: Slope, start: Tensor, *, time: float, steps: int) -> Tensor:
    """Return steps + 1 points of the flow `w' = -slope(w)` (Runge and Kutta, order 4).

    >>> follow(lambda w: w, torch.tensor([1.0]), time=1.0, steps=10)[-1]
    tensor([0.3679])
    """
    if steps < 1 or not time > 0:
        raise InputError(f"a flow needs at least one step and a time above 0, got {steps} and {time}")
    h, way = time / steps, [start]
    for _ in range(steps):
        w = way[-1]
        k1 = -slope(w)
        k2 = -slope(w + h / 2 * k1)
        k3 = -slope(w + h / 2 * k2)
        k4 = -slope(w + h * k3)
        way.append(w + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    return torch.stack(way)


def descend(slope: Slope, start: Tensor, *, rate: float, steps: int) -> Tensor:
    """Return steps + 1 points of gradient descent at a rate."""
    way = [start]
    for _ in range(steps):
        way.append(way[-1] - rate * slope(way[-1]))
    return torch.stack(way)


def cosines_between(slope: Slope, before: Tensor, after: Tensor, alphas: Tensor) -> Tensor:
    """Return cos(before - after, slope) at every place `(1 - a) before + a after`."""
    places = before + alphas[:, None] * (after - before)
    slopes = torch.stack([slope(place) for place in places])
    update = before - after
    lengths = slopes.norm(dim=1) * update.norm()
    cosines: Tensor = slopes @ update / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)
    return cosines


def best_place(
    slope: Slope, before: Tensor, after: Tensor, *, points: int = 21, zooms: int = 4
) -> tuple[Tensor, Tensor]:
    """Return (place, cosine) of the largest cosine on the line: a grid, then finer ones around its best place."""
    low, high = before.new_zeros(()), before.new_ones(())
    for _ in range(zooms + 1):
        alphas = low + (high - low) * torch.linspace(0, 1, points, dtype=before.dtype)
        cosines = cosines_between(slope, before, after, alphas)
        best = int(cosines.argmax())
        low, high = alphas[max(best - 1, 0)], alphas[min(best + 1, points - 1)]
    return alphas[best], cosines[best]


def goes_along(slope: Slope, way: Tensor) -> bool:
    """Return whether the condition of Proposition 4.1 holds: `<slope(w(t)), w_0 - w_T> >= 0` at every point."""
    update = way[0] - way[-1]
    return all(bool(slope(point) @ update >= 0) for point in way)


def parallel_places(slope: Slope, before: Tensor, after: Tensor, *, points: int = 201, halvings: int = 60) -> Tensor:
    """Return the places a on the line (in two dimensions) whose slope is parallel to `before - after`, by bisection.

    The part of the slope across the line changes sign between two neighbours of `points` places, or is 0 at one of them.
    """
    if before.shape != (2,):
        raise InputError(f"parallel_places is for two dimensions, got weights of shape {tuple(before.shape)}")
    update = before - after
    across = torch.stack([-update[1], update[0]])

    def side(alpha: Tensor) -> Tensor:
        return slope(before + alpha * (after - before)) @ across

    grid = torch.linspace(0, 1, points, dtype=before.dtype)
    sides = torch.stack([side(a) for a in grid])
    found = [a for a, s in zip(grid, sides, strict=True) if s == 0]
    for k in (sides[:-1] * sides[1:] < 0).nonzero()[:, 0].tolist():
        low, high, sign = grid[k], grid[k + 1], sides[k].sign()
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if side(middle).sign() == sign else (low, middle)
        found.append((low + high) / 2)
    return torch.stack(found) if found else grid[:0]


def helix_slope(w: Tensor) -> Tensor:
    """Return the field of the paper's counterexample, whose flow from the origin is (cos t - 1, sin t, t).

    It depends on the third coordinate alone, `-(-sin z, cos z, 1)`. Such a field has a curl, so it is the gradient of no loss;
    the paper takes it as what gradients may look like nearby.
    """
    z = w[2]
    return -torch.stack([-z.sin(), z.cos(), torch.ones_like(z)])
