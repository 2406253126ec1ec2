"""The gradient of the last layer, which every label rule reads.

For cross entropy with logits `o = W h + b` the mean gradient over N examples is

    dL/db_c  = mean_i (p_ic - y_ic)            dL/dW_c = mean_i (p_ic - y_ic) h_i

so a class that occurs pulls its bias gradient below zero. A bias gradient is preferred: it does not depend on the features h.
Without one the sum of row c replaces it, which is valid only for non-negative h (sigmoid, relu) and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.tree import Tree, lift
from leakscope.core.types import Knowledge, Observation, Shares, direction

LabelRule = Callable[[Model, Observation, Knowledge, Tensor], Tensor]
DUMMIES = 64


def last_dense(model: Model) -> Dense:
    """Return the names of the last layer; a network that does not end in a dense layer is refused."""
    if model.head is None:
        raise InputError(
            f"model {model.name!r} does not end in a trained dense layer: its labels cannot be read; use 'joint'"
        )
    return model.head


def last_layer(model: Model, observation: Observation) -> tuple[Tensor, Tensor | None]:
    """Return (weight gradient T x C x F, bias gradient T x C or None) of the last layer, averaged over rounds."""
    head = last_dense(model)
    if head.weight in model.private or head.bias in model.private:
        raise InputError(
            f"the last layer of {model.name!r} ({head.weight}) is private: labels cannot be read; use 'joint'"
        )
    sent = [direction(seen, observation.shares) for seen in observation.rounds]
    weight = torch.stack([s[head.weight] for s in sent]).mean(0)
    bias = torch.stack([s[head.bias] for s in sent]).mean(0) if head.bias is not None else None
    return weight, bias


def check_signs(model: Model) -> None:
    """Raise if the last layer has features that may be negative, so that its row sums say nothing."""
    if not last_dense(model).nonnegative:
        raise InputError(
            f"the last layer of {model.name!r} has no bias and its features may be negative: row sums say nothing about "
            "the label; use 'idlg' (product rule, one example) or 'joint'"
        )


def class_pull(model: Model, observation: Observation) -> Tensor:
    """Return T x C, negative for classes that occur: the bias gradient, or the row sums of non-negative features."""
    weight, bias = last_layer(model, observation)
    if bias is not None:
        return bias
    check_signs(model)
    return weight.sum(-1)


def bias_gradient(model: Model, observation: Observation, knowledge: Knowledge, keys: Tensor) -> Tensor:
    """Return the bias gradient, T x C; of a layer without bias the row sums over the mean sum of features of random inputs."""
    gradient = class_pull(model, observation)
    if last_dense(model).bias is not None:
        return gradient
    return gradient / _feature_sum(model, observation, knowledge, keys)[:, None].clamp_min(1e-12)


def cross_entropy_only(rule: str, knowledge: Knowledge) -> None:
    """Raise if the loss is another than cross entropy."""
    if knowledge.loss != "cross_entropy":
        raise InputError(
            f"label rule {rule!r} reads cross entropy gradients, the loss is {knowledge.loss!r}; use 'joint'"
        )


def present_slots(knowledge: Knowledge, like: Tensor) -> Tensor:
    """Return which slots of each client hold an example (T x N): all, or those known for a smaller client."""
    if knowledge.present is not None:
        return knowledge.present
    return torch.ones(len(like), knowledge.samples, dtype=torch.bool, device=like.device)


def held_weights(observation: Observation, knowledge: Knowledge) -> list[Tree]:
    """Return the weights before, and those after if they were sent and more than one step apart."""
    first, local = observation.rounds[0], knowledge.local
    if observation.shares is Shares.WEIGHTS and not (local and local.steps(knowledge.samples) == 1):
        return [first.before, {**first.before, **first.sent}]
    return [first.before]


def mean_prediction(
    model: Model, observation: Observation, inputs: Tensor, knowledge: Knowledge, key: Tensor
) -> Tensor:
    """Return the mean softmax (T x C) over inputs T x P x ..., averaged over all sets of weights that the attacker holds."""
    buffers = observation.rounds[0].buffers
    apply = lift(lambda w, b, x, k: model.apply(w, b, x, k)[0])
    outputs = [apply(w, buffers, inputs, key) for w in held_weights(observation, knowledge)]
    return torch.stack([o.softmax(-1).mean(1) for o in outputs]).mean(0)


def random_inputs(observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return 64 uniform inputs a trial, scaled as the network takes them."""
    like = next(iter(observation.rounds[0].before.values()))
    pictures = random.uniform(random.fold(key, "dummies"), (DUMMIES, *knowledge.input_shape)).to(like)
    return knowledge.scaling.scale(pictures, len(knowledge.input_shape))


def _feature_sum(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the mean over random inputs of the sum of features entering the last layer: d(mean o_0)/dW_0 summed."""
    first, head = observation.rounds[0], last_dense(model)

    def one(w: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, k: Tensor) -> Tensor:
        def logit(weight: Tensor) -> Tensor:
            return model.apply({**w, head.weight: weight}, b, x, k)[0][:, 0].mean()

        row: Tensor = torch.func.grad(logit)(w[head.weight])[0]
        return row.sum()

    return lift(one)(first.before, first.buffers, random_inputs(observation, knowledge, key), key)
