"""How planar local training is: the share of every step's gradient in the best plane through the origin.

SME (Zhu et al. 2023, arXiv:2306.00127, section 5.1, Assumption 4.2) collects the gradients of all local data at the weights of
every step, takes their two leading singular directions (without centring) and reports

    ||P_2 grad l(w_t)|| / ||grad l(w_t)||,   t = 0 .. T - 1       (figures 3, 7 and 9)

If all of them lie in a plane, a point on the line from w_0 to w_T has its gradient along the update (Proposition 4.1). The rest
is `G_2` of the bounds (8) and (10): the smallest number with ||P_2 g||^2 >= (1 - G_2^2) ||g||^2 for all of them. Functions are of
ONE trial (see `leakscope.core.tree.lift`). Inputs are in network space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import LocalTraining
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.local import train
from leakscope.learning.losses import Loss


def local_path(
    model: Model,
    loss: Loss,
    local: LocalTraining,
    weights: Tree,
    buffers: Tree,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    order: Tensor,
    key: Tensor,
) -> list[Tree]:
    """Return the weights w_0, w_1, .. w_T of a local training.

    Plain SGD continues from point to point (with the same dropout draws in every step). With momentum, Adam or a proximal term,
    whose state `train` does not return, every point is trained from the start.
    """
    path = [weights]
    plain = local.optimiser == "sgd" and not local.momentum and not local.proximal
    for step in range(order.shape[0]):
        begin, taken = (path[-1], order[step : step + 1]) if plain else (weights, order[: step + 1])
        after, _ = train(model, loss, local, begin, buffers, inputs, targets, mask, taken, key)
        path.append(after)
    return path


def full_gradients(
    model: Model,
    loss: Loss,
    points: list[Tree],
    buffers: Tree,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    key: Tensor,
) -> Tensor:
    """Return the gradient of the mean loss over all samples at every point, as rows (points x parameters)."""
    rows = []
    for weights in points:
        gradient, _, _, _ = loss_and_gradient(model, loss, weights, buffers, inputs, targets, mask, key)
        rows.append(torch.cat([value.reshape(-1) for value in gradient.values()]))
    return torch.stack(rows)


def shares_in_plane(gradients: Tensor, *, rank: int = 2) -> Tensor:
    """Return ||P g_t|| / ||g_t|| for every row (1 for zero rows), with P onto the `rank` leading singular directions of all rows.

    With the rows G = U S V^T, P g_t has the coordinates s_k U_tk, computed from the small matrix G G^T = U S^2 U^T.

    >>> shares_in_plane(torch.tensor([[3.0, 0, 0], [0, 2, 0], [0, 0, 1]]))
    tensor([1., 1., 0.])
    """
    wide = gradients.double()
    gram = wide @ wide.mT
    values, vectors = torch.linalg.eigh(gram)
    inside = (vectors[..., -rank:].square() * values[..., None, -rank:].clamp_min(0)).sum(-1)
    whole = gram.diagonal(dim1=-2, dim2=-1)
    share = torch.where(whole > 0, inside / whole.clamp_min(torch.finfo(whole.dtype).tiny), 1.0)
    return share.clamp(0, 1).sqrt().to(gradients.dtype)


def off_plane(shares: Tensor) -> Tensor:
    """Return G_2 of Assumption 4.2 on the measured points: sqrt(1 - min share^2); NaN shares are ignored."""
    return (1 - shares.nan_to_num(nan=1.0).amin(-1).square()).clamp_min(0).sqrt()
