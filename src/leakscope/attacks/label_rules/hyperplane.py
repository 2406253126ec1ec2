"""The set of labels by a hyperplane test (RLG, Dang et al. 2021, Revealing and protecting labels in distributed training, NeurIPS).

`dL/dW = D^T H / N` with D the N x C matrix of `p_i - y_i`. If its rank S is the number of examples, the first S left singular vectors Q
(C x S) span the rows of D: the row of example i is `Q r_i`, negative at its label and positive at every other class. So class c can
occur only if some r has `Q_c r < 0` and `Q_j r >= 0` for all j != c, a linear programme of S unknowns. It gives the set, no counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.label_rules.head import last_layer
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Observation

RANK = 1e-5  # singular values below this share of the largest are rounding


def label_set(model: Model, observation: Observation) -> Tensor:
    """Return which classes can occur in each client's batch, T x C; valid for a gradient of fewer examples than classes and features.

    No bias, sign of the features, length or number of examples is needed. A class that occurs always passes; one that does not
    passes rarely while S is well below C.
    """
    rows = last_layer(model, observation)[0].detach().double().cpu()
    return torch.stack([separable_classes(one) for one in rows])


def separable_classes(gradient: Tensor) -> Tensor:
    """Return for which rows of a weight gradient (C x F) a hyperplane separates their row of Q from all others, C."""
    left, values, _ = torch.linalg.svd(gradient, full_matrices=False)
    rank = int((values > RANK * values[0]).sum())
    if rank >= min(gradient.shape):
        raise InputError(
            f"the hyperplane test needs fewer examples than classes and features, the gradient of {tuple(gradient.shape)} has "
            f"full rank; use the rule 'by_residual'"
        )
    return torch.tensor([_is_separable(left[:, :rank], c) for c in range(len(left))])


def _is_separable(points: Tensor, place: int) -> bool:
    """Return whether some r has `points[place] r <= -1` and `points[j] r >= 0` for all others."""
    from scipy.optimize import linprog

    sides = -points.clone()
    sides[place] *= -1
    limits = torch.zeros(len(points))
    limits[place] = -1
    found = linprog([0.0] * points.shape[1], A_ub=sides.numpy(), b_ub=limits.numpy(), bounds=(None, None))
    return bool(found.status == 0)
