"""iLRG: counts from the mean features of each class.

The ratio `e_c = dL/dW_c / dL/db_c` is near the mean features of class c, where it occurs, and `P_c = softmax(W e_c + b)` near its mean
prediction. The counts n then solve, in least squares,

    sum_c n_c = N        and for every class i        sum_c n_c (P_c[i] - 1[i = c]) = N dL/db_i

Ma et al. 2023, Instance-wise batch label restoration via gradients in federated learning, ICLR. Two things differ from it: counts
below 0 leave the system, which is solved again without them, and fractions are rounded by largest remainder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.label_rules.apportion import apportion_least
from leakscope.attacks.label_rules.counts import least_counts, mean_gradient
from leakscope.attacks.label_rules.head import (
    bias_gradient,
    cross_entropy_only,
    held_weights,
    last_dense,
    last_layer,
    present_slots,
)
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.types import Knowledge, Observation

ROUNDS = 8  # times that counts below 0 leave the system
RIDGE = 1e-9  # of the mean diagonal
FAR = 1e4  # bound of features of a class without gradient


@dataclass(frozen=True, slots=True)
class ClassFit:
    """Shares of classes (T x C, none below 0) and the part of dL/dW that they leave unexplained (T): |dL/dW - fit| / |dL/dW|.

    `cut` is the same part of the bias gradient (T): 0 unless shares below 0 were cut. What is left of them is whole by itself.
    """

    share: Tensor
    residual: Tensor
    cut: Tensor

    __repr__ = short_repr


def ilrg(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels in class order from the predictions at each class's mean features (iLRG), never below `least_counts`."""
    cross_entropy_only("ilrg", knowledge)
    pull = bias_gradient(model, observation, knowledge, key)
    share = fit_classes(model, observation, knowledge, pull).share
    return apportion_least(share, least_counts(model, observation, knowledge, pull), present_slots(knowledge, pull))


def fit_classes(model: Model, observation: Observation, knowledge: Knowledge, pull: Tensor) -> ClassFit:
    """Return the shares that solve iLRG's system, and how well these classes explain the whole gradient of the last layer.

    With n_c examples of features e_c and prediction P_c in class c the gradient is `dL/dW = sum_c n_c / N (P_c - 1_c) e_c^T`.
    """
    even = torch.full_like(pull, 1 / pull.shape[1])
    gradient = mean_gradient(model, observation, knowledge, pull, even).double()
    features = (last_layer(model, observation)[0].double() / pull.double()[..., None]).nan_to_num(0.0, FAR, -FAR)
    system = _predictions(model, observation, knowledge, features).mT - torch.eye(len(even[0])).to(features)
    share = _solve(system, gradient)
    weight = features * gradient[..., None]
    left = (system * share[:, None, :]) @ features - weight
    residual = left.flatten(1).norm(dim=1) / weight.flatten(1).norm(dim=1).clamp_min(1e-12)
    missed = (system @ share[..., None])[..., 0] - gradient
    cut = missed.norm(dim=1) / gradient.norm(dim=1).clamp_min(1e-12)
    return ClassFit(share.to(pull), residual.to(pull), cut.to(pull))


def prediction_at_mean(model: Model, observation: Observation, knowledge: Knowledge, pull: Tensor) -> Tensor:
    """Return the prediction at the mean features e of the batch, T x C, with e by least squares of `dL/dW_c = dL/db_c e` over classes."""
    pull = pull.double()
    features = (pull[:, None] @ last_layer(model, observation)[0].double())[:, 0]
    features = (features / pull.square().sum(1, keepdim=True)).nan_to_num(0.0, FAR, -FAR)
    return _predictions(model, observation, knowledge, features[:, None])[:, 0].to(last_layer(model, observation)[0])


def _solve(system: Tensor, gradient: Tensor) -> Tensor:
    """Return shares s >= 0 (T x C) with `system s = gradient` and sum 1 in least squares; those below 0 become 0 in rounds."""
    identity = torch.eye(system.shape[2]).to(system)
    normal = system.mT @ system + 1
    normal = normal + RIDGE * normal.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * identity
    right = (system.mT @ gradient[..., None])[..., 0] + 1
    inside = torch.ones_like(gradient, dtype=torch.bool)
    for _ in range(ROUNDS):
        both = inside[:, :, None] & inside[:, None, :]
        share: Tensor = torch.linalg.solve(torch.where(both, normal, identity), torch.where(inside, right, 0))
        inside = inside & (share > 0)
    return share.clamp_min(0)


def _predictions(model: Model, observation: Observation, knowledge: Knowledge, features: Tensor) -> Tensor:
    """Return the softmax at each row of features, T x R x C, at the mean of the weights that the attacker holds."""
    head, held = last_dense(model), held_weights(observation, knowledge)
    logits = features @ torch.stack([w[head.weight] for w in held]).mean(0).to(features).mT
    if head.bias is not None:
        logits = logits + torch.stack([w[head.bias] for w in held]).mean(0).to(features)[:, None, :]
    return logits.softmax(-1)
