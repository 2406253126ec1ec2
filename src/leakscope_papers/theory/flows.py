"""Gradient flows in few dimensions: where SME's idea is a theorem, and where it fails.

Proposition 4.1 (Zhu et al. 2023, arXiv:2306.00127): let w(t) follow `w' = -grad l(w)` in the plane, from w_0 to w_T, with `<grad
l(w(t)), w_0 - w_T> >= 0` throughout. Then some w_hat on the line between them has its gradient parallel to w_0 - w_T, with the
same direction if l is convex. Corollary C.1: for convex l in any dimension `<grad l(w_hat), w_0 - w_T> >= 0` on the whole line.
In three dimensions it can fail: on a helix every gradient on the line has the cosine 1 / sqrt 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Slope = Callable[[Tensor], Tensor]


def descend(slope: Slope, start: Tensor, *, rate: float, steps: int) -> Tensor:
    """Return steps + 1 points of gradient descent at a rate."""
    way = [start]
    for _ in range(steps):
        way.append(way[-1] - rate * slope(way[-1]))
    return torch.stack(way)


def cosines_between(slope: Slope, before: Tensor, after: Tensor, alphas: Tensor) -> Tensor:
    """Return cos(before - after, slope) at every point `(1 - a) before + a after`."""
    places = before + alphas[:, None] * (after - before)
    slopes = torch.stack([slope(place) for place in places])
    update = before - after
    lengths = slopes.norm(dim=1) * update.norm()
    cosines: Tensor = slopes @ update / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)
    return cosines


def best_place(
    slope: Slope, before: Tensor, after: Tensor, *, points: int = 21, zooms: int = 4
) -> tuple[Tensor, Tensor]:
    """Return (point, cosine) of the largest cosine on the line: a grid, then finer grids around its best point."""
    low, high = before.new_zeros(()), before.new_ones(())
    for _ in range(zooms + 1):
        alphas = low + (high - low) * torch.linspace(0, 1, points, dtype=before.dtype)
        cosines = cosines_between(slope, before, after, alphas)
        best = int(cosines.argmax())
        low, high = alphas[max(best - 1, 0)], alphas[min(best + 1, points - 1)]
    return alphas[best], cosines[best]
