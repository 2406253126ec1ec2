"""Counts from a mean prediction: `n_c = N (p_c - dL/db_c)`, with p from random inputs, public examples or none at all."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.label_rules.apportion import apportion, apportion_least
from leakscope.attacks.label_rules.head import (
    bias_gradient,
    cross_entropy_only,
    last_dense,
    last_layer,
    mean_prediction,
    present_slots,
    random_inputs,
)
from leakscope.core.model import Model
from leakscope.core.tree import lift, norm
from leakscope.core.types import Knowledge, Observation, Shares, direction

ROUNDS = 4  # iterations of `_read_length`
TOUCHING = 0.999  # share of the bound from which an update counts as clipped
EXACT = 1e-3  # of an example: below this a fraction is rounding
SIGMAS = 3  # noise beyond so many standard deviations is a gradient


def counts(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels in class order, from `n_c = N (p_c - dL/db_c)`.

    The mean prediction p is taken on random inputs at the weights the attacker holds, averaged over before and after if weights
    were sent. Fractions are rounded by largest remainder so that the counts add up to N. Without Knowledge.local the length of a
    weight update is estimated from the missing classes (see `_length`).
    """
    cross_entropy_only("counts", knowledge)
    pull = bias_gradient(model, observation, knowledge, key)
    share = random_shares(model, observation, knowledge, key, pull).clamp_min(0)
    return apportion(share / share.sum(1, keepdim=True).clamp_min(1e-12), present_slots(knowledge, share))


def calibrated(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels in class order, from `n_c = N (q_c - dL/db_c)` with q the mean prediction on public examples, else 1 / C.

    Let labels be drawn alike and the network be calibrated (`E[y | p] = p`), its mean prediction q. Then `Cov(n, dL/db) = -N
    Cov(dL/db)`, so this is the best linear estimate of the counts, whether the network has learned much or nothing. Counts are
    never below `least_counts`.
    """
    cross_entropy_only("calibrated", knowledge)
    pull = bias_gradient(model, observation, knowledge, key)
    share = calibrated_shares(model, observation, knowledge, key, pull)
    least = least_counts(model, observation, knowledge, pull)
    return apportion_least(share, least, present_slots(knowledge, pull))


def random_shares(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor, pull: Tensor) -> Tensor:
    """Return `p_c - dL/db_c` with p from random inputs, T x C; values below 0 show a wrong p."""
    inputs = random_inputs(observation, knowledge, key)
    prediction = mean_prediction(model, observation, inputs, knowledge, key)
    return prediction - mean_gradient(model, observation, knowledge, pull, prediction)


def calibrated_shares(
    model: Model, observation: Observation, knowledge: Knowledge, key: Tensor, pull: Tensor
) -> Tensor:
    """Return `q_c - dL/db_c` with q from public examples or 1 / C, T x C."""
    if knowledge.public is None:
        prediction = torch.full_like(pull, 1 / pull.shape[1])
    else:
        public = knowledge.scaling.scale(knowledge.public.to(pull), len(knowledge.input_shape))
        prediction = mean_prediction(model, observation, public, knowledge, key)
    return prediction - mean_gradient(model, observation, knowledge, pull, prediction)


def mean_gradient(
    model: Model, observation: Observation, knowledge: Knowledge, pull: Tensor, prediction: Tensor
) -> Tensor:
    """Return the bias gradient of an update as the mean over examples, T x C: without the length of local steps or of a clip."""
    if observation.shares is Shares.WEIGHTS:
        pull = pull / _length(pull, prediction, knowledge)
    if knowledge.bound is not None:
        shrunk = _clipped(model, observation, knowledge, knowledge.bound)
        pull = torch.where(shrunk, pull / _read_length(pull, prediction, knowledge), pull)
    return pull


def least_counts(model: Model, observation: Observation, knowledge: Knowledge, pull: Tensor) -> Tensor:
    """Return how many examples of each class one gradient proves, T x C: predictions are not negative, so `n_c >= -N dL/db_c`.

    Over classes every column of dL/dW adds up to 0, so what is left there is noise, and a count must exceed it. Nothing is proved
    by several local steps, an unknown rate or a layer without bias.
    """
    local, total = knowledge.local, present_slots(knowledge, pull).sum(1, keepdim=True)
    one_step = local is not None and local.optimiser == "sgd" and local.steps(knowledge.samples) == 1
    if last_dense(model).bias is None or not (observation.shares is Shares.GRADIENT or one_step):
        return torch.zeros_like(pull)
    length = 1.0 if observation.shares is Shares.GRADIENT or local is None else local.rate
    noise = last_layer(model, observation)[0].sum(1).square().mean(1, keepdim=True).div(pull.shape[1]).sqrt()
    least = (-total * (pull + SIGMAS * noise) / length - EXACT).ceil().clamp_min(0)
    return torch.where(least.sum(1, keepdim=True) <= total, least, 0)


def _length(pull: Tensor, prediction: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the divisor that turns an update into a mean gradient (T x 1): `LocalTraining.length` if known (SGD), else `_read_length`."""
    local, total = knowledge.local, present_slots(knowledge, pull).sum(1)
    if local is not None and local.optimiser == "sgd":
        return local.length([int(n) for n in total.tolist()]).to(pull)[:, None]
    return _read_length(pull, prediction, knowledge)


def _clipped(model: Model, observation: Observation, knowledge: Knowledge, bound: Tensor) -> Tensor:
    """Return whether the known clip shrank an update, T x 1: its norm equals the bound."""
    first, head = observation.rounds[0], last_dense(model)
    sent = direction(first, observation.shares)
    if knowledge.bound_each:
        name = head.weight if head.bias is None else head.bias
        sent = {name: sent[name]}
    return (lift(norm)(sent) >= TOUCHING * bound.to(observation.samples.device))[:, None]


def _read_length(pull: Tensor, prediction: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the length s of an update estimated from its classes (T x 1), for updates of unknown length or clipped ones.

    Solves `pull_c = s (p_c - n_c / N)` for s: a class without samples is pushed by `s p_c`. At least C - N classes are such,
    those of the largest `pull_c / p_c`; with the resulting s, classes of less than half a sample join them. If every class
    occurs, s is too small and the counts are too uneven.
    """
    total = present_slots(knowledge, pull).sum(1)
    number = max(pull.shape[1] - knowledge.samples, 1)
    ratio = pull / prediction.clamp_min(1e-12)
    surely = ratio >= ratio.topk(number, dim=1).values[:, -1:]
    missing = surely
    for _ in range(ROUNDS):
        length = (pull * missing).sum(1, keepdim=True) / (prediction * missing).sum(1, keepdim=True).clamp_min(1e-12)
        length = length.clamp_min(1e-12)
        missing = surely | (total[:, None] * (prediction - pull / length) < 0.5)
    return length
