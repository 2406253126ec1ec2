"""iLRG: counts from the mean features of each class.

The ratio `e_c = dL/dW_c / dL/db_c` is near the mean features of class c, where it occurs, and `P_c = softmax(W e_c + b)` near its mean
prediction. The counts n then solve, in least squares,

    sum_c n_c = N        and for every class i        sum_c n_c (P_c[i] - 1[i = c]) = N dL/db_i

Ma et al. 2023, Instance-wise batch label restoration via gradients in federated learning, ICLR. Two things differ from it: counts
below 0 leave the system, which is solved again without them, and fractions are rounded by largest remainder.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.label_rules.apportion import apportion_least
from leakscope.attacks.label_rules.counts import least_counts, mean_gradient
from leakscope.attacks.label_rules.head import bias_gradient, cross_entropy_only, last_dense, last_layer, present_slots
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, Shares

ROUNDS = 8  # times that counts below 0 leave the system
RIDGE = 1e-9  # of the mean diagonal
FAR = 1e4  # logits beyond this are the same softmax


def ilrg(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels in class order from the predictions at each class's mean features (iLRG), never below `least_counts`."""
    cross_entropy_only("ilrg", knowledge)
    pull = bias_gradient(model, observation, knowledge, key)
    share = ilrg_shares(model, observation, knowledge, pull)
    return apportion_least(share, least_counts(model, observation, knowledge, pull), present_slots(knowledge, pull))


def ilrg_shares(model: Model, observation: Observation, knowledge: Knowledge, pull: Tensor) -> Tensor:
    """Return the share of each class, T x C, none below 0."""
    prediction = class_predictions(model, observation, pull)
    even = torch.full_like(pull, 1 / pull.shape[1])
    gradient = mean_gradient(model, observation, knowledge, pull, even).double()
    system = prediction.mT - torch.eye(pull.shape[1], dtype=torch.float64, device=pull.device)
    normal = system.mT @ system + 1
    normal = normal + RIDGE * normal.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(len(even[0])).to(
        normal
    )
    right = (system.mT @ gradient[..., None])[..., 0] + 1
    inside = torch.ones_like(pull, dtype=torch.bool)
    for _ in range(ROUNDS):
        both = inside[:, :, None] & inside[:, None, :]
        share = torch.linalg.solve(
            torch.where(both, normal, torch.diag_embed((~inside).double())), torch.where(inside, right, 0)
        )
        inside = inside & (share > 0)
    return share.clamp_min(0).to(pull)


def class_predictions(model: Model, observation: Observation, pull: Tensor) -> Tensor:
    """Return the softmax at each class's mean features, T x C x C, at the mean of the weights that the attacker holds; float64."""
    first, head = observation.rounds[0], last_dense(model)
    rows = last_layer(model, observation)[0].double()

    def held(name: str) -> Tensor:
        before = first.before[name].double()
        return before if observation.shares is Shares.GRADIENT else (before + first.sent[name].double()) / 2

    features = rows / pull.double()[..., None]
    logits = features @ held(head.weight).mT
    if head.bias is not None:
        logits = logits + held(head.bias)[:, None, :]
    return logits.nan_to_num(0.0, FAR, -FAR).clamp(-FAR, FAR).softmax(-1)
