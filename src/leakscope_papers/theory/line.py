"""The line from the weights before to those after: where on it the gradient points along the update.

    cosine(a) = cos(w_0 - w_T, grad l((1 - a) w_0 + a w_T))       (figures 4, 8 and 10 of SME, arXiv:2306.00127)

IG assumes cosine(0) = 1; `1 - cosine(0)` is its intrinsic objective error (Eq. 2). SME searches for the largest. The paper's Eq.
5 counts a from the other end; its Table 1 and this module count from w_0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, interpolate, lift, subtract
from leakscope.core.types import LocalTraining
from leakscope.learning.local import draw_order
from leakscope.learning.losses import LOSSES, Loss, one_hot
from leakscope_papers.theory.plane import full_gradients, local_path, shares_in_plane

POINTS = 21


def cosines_on_line(
    model: Model,
    loss: Loss,
    before: Tree,
    after: Tree,
    buffers: Tree,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    alphas: Tensor,
    key: Tensor,
) -> Tensor:
    """Return the cosine between `before - after` and the gradient of all samples at every point on the line, for ONE trial."""
    places = [interpolate(before, after, alpha) for alpha in alphas]
    gradients = full_gradients(model, loss, places, buffers, inputs, targets, mask, key).double()
    update = torch.cat([value.reshape(-1) for value in subtract(before, after).values()]).double()
    lengths = gradients.norm(dim=1) * update.norm()
    cosines: Tensor = gradients @ update / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)
    return cosines


@dataclass(frozen=True, slots=True)
class Lines:
    """Results of T clients: `shares` T x steps in the best plane (NaN for padded steps), `cosines` T x A at the points `alphas` (A)."""

    alphas: Tensor
    shares: Tensor
    cosines: Tensor

    @property
    def least_share(self) -> Tensor:
        """Return the smallest share of a gradient in the plane, per client."""
        least = self.shares.nan_to_num(nan=torch.inf).amin(1)
        return torch.where(least.isinf(), torch.nan, least)

    @property
    def mean_share(self) -> Tensor:
        """Return the mean share of the gradients in the plane, per client."""
        return self.shares.nanmean(1)

    @property
    def at_before(self) -> Tensor:
        """Return the cosine at the weights before, per client: 1 minus the objective error of IG (Eq. 2)."""
        return self.cosines[:, 0]

    @property
    def greatest(self) -> Tensor:
        """Return the largest cosine on the line, per client."""
        return self.cosines.amax(1)

    @property
    def best_alpha(self) -> Tensor:
        """Return the position of the largest cosine, per client."""
        return self.alphas[self.cosines.argmax(1)]


def sample_lines(
    model: Model,
    local: LocalTraining,
    weights: Tree,
    inputs: Tensor,
    labels: Tensor,
    keys: Tensor,
    *,
    loss: str = "cross_entropy",
    mask: Tensor | None = None,
    points: int = POINTS,
    chunk: int = 1,
) -> Lines:
    """Return shares and cosines of T clients; `inputs` T x N x ... in network space, `weights` one set per client.

    The order of the samples comes from each key. `chunk` clients run at once: each holds steps x parameters numbers. Padding
    (`mask`) does not change a client's result.
    """
    if points < 2:
        raise InputError(f"sample_lines(points=...) must be at least 2, got {points}")
    trials = inputs.shape[0]
    alphas = torch.linspace(0, 1, points, dtype=inputs.dtype, device=inputs.device)
    present = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    buffers = {name: value.expand(trials, *value.shape) for name, value in model.buffers.items()}

    def one(w: Tree, b: Tree, x: Tensor, y: Tensor, m: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        targets, order = one_hot(y, model.classes, x.dtype), draw_order(local, x.shape[0], k, m)
        way = local_path(model, LOSSES[loss], local, w, b, x, targets, m, order, k)
        gradients = full_gradients(model, LOSSES[loss], way[:-1], b, x, targets, m, k)
        cosines = cosines_on_line(model, LOSSES[loss], w, way[-1], b, x, targets, m, alphas, k)
        stepped = (order >= 0).any(1)
        shares = shares_in_plane(torch.where(stepped[:, None], gradients, 0.0))
        return torch.where(stepped, shares, torch.nan), cosines

    shares, cosines = lift(one, chunk=chunk)(weights, buffers, inputs, labels, present, random.fold(keys, "client"))
    return Lines(alphas, shares, cosines)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over `n` samplings, as printed in tables 1, 4 and 5."""

    mean: float
    deviation: float
    n: int


def describe(lines: Lines) -> Mapping[str, Spread]:
    """Return the rows of tables 1, 4 and 5, and the objective error of IG and the best position."""
    measured = {
        "least_share": lines.least_share,
        "cosine_before": lines.at_before,
        "cosine_greatest": lines.greatest,
        "objective_error": 1 - lines.at_before,
        "best_alpha": lines.best_alpha,
    }
    return {name: _spread(values) for name, values in measured.items()}


def _spread(values: Tensor) -> Spread:
    wide = values.double()
    deviation = float(wide.std()) if len(wide) > 1 else float("nan")
    return Spread(float(wide.mean()), deviation, len(wide))
