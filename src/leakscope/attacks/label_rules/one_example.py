"""Rules for one example: the class that pulls its row the other way.

Ambiguous cases: with two classes and one example the rows are exact opposites, so the product rule cannot separate them (the bias
can); with tanh features and no bias the row sum has no fixed sign; soft or mixed labels are no single label. MSE has `2 (o_c -
y_c) / C` in place of `p_c - y_c`, which need not be negative for the true class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.label_rules.head import class_pull, cross_entropy_only, last_dense, last_layer
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation


def _one_example(rule: str, knowledge: Knowledge) -> None:
    cross_entropy_only(rule, knowledge)
    if knowledge.samples != 1:
        raise InputError(f"label rule {rule!r} is for one example, the batch has {knowledge.samples}; use 'counts'")


def _whole_rows(model: Model, knowledge: Knowledge) -> bool:
    """Return whether to read the sum of a class's row: more robust than the bias to known masks or noise; needs non-negative features."""
    return (knowledge.mask is not None or knowledge.sigma is not None) and last_dense(model).nonnegative


def cpl(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the class with the smallest last-layer gradient (CPL's Algorithm 1, line 9); of whole rows if `_whole_rows`."""
    del key
    _one_example("cpl", knowledge)
    if _whole_rows(model, knowledge):
        weight, bias = last_layer(model, observation)
        return (weight.sum(-1) + (0 if bias is None else bias)).argmin(1, keepdim=True)
    return class_pull(model, observation).argmin(1, keepdim=True)


def idlg(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the one class whose gradient points against all others (iDLG, Zhao et al. 2020): by the bias, else by row products."""
    _one_example("idlg", knowledge)
    weight, bias = last_layer(model, observation)
    if bias is not None and _whole_rows(model, knowledge):
        return cpl(model, observation, knowledge, key)
    if bias is not None:
        return bias.argmin(1, keepdim=True)
    gram = weight @ weight.mT
    against = gram.sum(-1) - gram.diagonal(dim1=1, dim2=2)
    opposed = (gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2)) <= 0).all(-1)
    return torch.where(opposed, against - against.abs().amax(1, keepdim=True) * 2, against).argmin(1, keepdim=True)
