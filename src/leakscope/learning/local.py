"""Local training of one trial as a differentiable loop: E epochs of batches of B, SGD with momentum or Adam.

With `proximal = mu` every step descends `loss + mu/2 |w - w0|^2` (FedProx), w0 being the initial weights. Agrees step by step
with `torch.optim.SGD` and `torch.optim.Adam`. The random order of the examples is an argument.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, subtract
from leakscope.core.types import LocalTraining
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import Loss
from leakscope.learning.segments import recompute

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


def draw_order(local: LocalTraining, samples: int, key: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return which example each slot of each step takes: steps x B (after `key.shape`), -1 where a batch is short.

    With a `mask` (`key.shape + samples`) real examples come first, so a client of fewer examples takes fewer steps.
    """
    size = min(local.batch_size or samples, samples)
    per_epoch = -(-samples // size)
    spare = per_epoch * size - samples
    epochs = []
    for epoch in range(local.epochs):
        if local.shuffle and per_epoch > 1:
            order = random.permutation(random.fold(random.fold(key, "order"), epoch), samples)
        else:
            order = torch.arange(samples, device=key.device).expand(*key.shape, samples)
        if mask is not None:
            present = mask.gather(-1, order)
            last = torch.argsort((~present).to(torch.int8), dim=-1, stable=True)
            order = torch.where(present, order, -1).gather(-1, last)
        epochs.append(torch.nn.functional.pad(order, (0, spare), value=-1).unflatten(-1, (per_epoch, size)))
    return torch.cat(epochs, dim=-2)


def train(
    model: Model,
    loss: Loss,
    local: LocalTraining,
    parameters: Tree,
    buffers: Tree,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    order: Tensor | tuple[Tensor, ...],
    key: Tensor,
    *,
    segment: int | None = None,
) -> tuple[Tree, Tree]:
    """Return (weights, buffers) after the local steps of one trial; `order` is steps x B, or one row per step.

    With `segment = s` only every s-th state is kept for the backward pass and the steps between are recomputed: memory grows with
    steps / s + s instead of steps.
    """
    stepper = _Stepper(model, loss, local)
    carry = stepper.begin(parameters, buffers)
    steps = len(order)
    # folded for all steps at once, and only if the network draws: a fold is a hundred operations
    keys = random.fold(key, torch.arange(steps, device=key.device)) if model.draws else key.expand(steps)
    length = segment or steps
    for first in range(0, steps, length):
        chunk = range(first, min(first + length, steps))

        # all values that vary by trial are arguments: closures of a recomputed function count as constant
        def run(
            carry: dict[str, Tree],
            inputs: Tensor,
            targets: Tensor,
            mask: Tensor,
            order: Tensor | tuple[Tensor, ...],
            keys: Tensor,
            chunk: range = chunk,
        ) -> dict[str, Tree]:
            for step in chunk:
                carry = stepper.step(carry, inputs, targets, mask, order[step], keys[step])
            return carry

        values = (carry, inputs, targets, mask, order, keys)
        carry = recompute(run, *values) if segment else run(*values)
    return carry["parameters"], carry["buffers"]


def _chosen(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows at `index`, by gather: under vmap the derivative of index_select loops over the lanes."""
    wide = index.reshape(-1, *[1] * (values.ndim - 1)).expand(-1, *values.shape[1:])
    return values.gather(0, wide)


class _Stepper:
    """One optimiser step on a carried state, a dict of trees."""

    def __init__(self, model: Model, loss: Loss, local: LocalTraining) -> None:
        self.model, self.loss, self.local = model, loss, local
        adam = local.optimiser == "adam"
        self.update: Callable[[dict[str, Tree], Tree, Tensor], dict[str, Tree]] = self._adam if adam else self._sgd
        # unchanged in a step without examples: Adam does not move then, and plain SGD has gradient zero
        plain = not (local.momentum or local.weight_decay or local.proximal)
        self.settled = frozenset(
            {"first", "second", "parameters", "taken"} if adam else {"parameters"} if plain else ()
        )

    def begin(self, parameters: Tree, buffers: Tree) -> dict[str, Tree]:
        carry = {"parameters": parameters, "buffers": buffers}
        if self.local.optimiser == "adam":
            first = next(iter(parameters.values()))
            carry["taken"] = {"steps": torch.zeros((), dtype=first.dtype, device=first.device)}
        if self.local.momentum:
            carry["velocity"] = {name: torch.zeros_like(value) for name, value in parameters.items()}
        if self.local.optimiser == "adam":
            carry["first"] = {name: torch.zeros_like(value) for name, value in parameters.items()}
            # sqrt has an infinite slope at 0, reached by parameters without gradient: they start away from it
            carry["second"] = {name: torch.full_like(value, 1e-30) for name, value in parameters.items()}
        if self.local.proximal:
            carry["anchor"] = parameters
        return carry

    def step(
        self, carry: dict[str, Tree], inputs: Tensor, targets: Tensor, mask: Tensor, chosen: Tensor, key: Tensor
    ) -> dict[str, Tree]:
        index = chosen.clamp_min(0)
        present = (chosen >= 0) & mask.index_select(0, index)
        gradient, _, _, buffers = loss_and_gradient(
            self.model,
            self.loss,
            carry["parameters"],
            {n: b.detach() for n, b in carry["buffers"].items()},
            _chosen(inputs, index),
            _chosen(targets, index),
            present,
            key,
        )
        if self.local.weight_decay:
            gradient = {n: g + self.local.weight_decay * carry["parameters"][n] for n, g in gradient.items()}
        if self.local.proximal:
            pull = subtract(carry["parameters"], carry["anchor"])
            gradient = {n: g + self.local.proximal * pull[n] for n, g in gradient.items()}
        taken = present.any()  # a step of padding only changes nothing: no decay, momentum or count
        moved = self.update({**carry, "buffers": buffers}, gradient, taken)
        return {
            kind: tree if kind in self.settled else {n: torch.where(taken, v, carry[kind][n]) for n, v in tree.items()}
            for kind, tree in moved.items()
        }

    def _sgd(self, carry: dict[str, Tree], gradient: Tree, taken: Tensor) -> dict[str, Tree]:
        del taken
        if self.local.momentum:
            gradient = {n: self.local.momentum * carry["velocity"][n] + g for n, g in gradient.items()}
            carry = {**carry, "velocity": gradient}
        moved = {n: p - self.local.rate * gradient[n] for n, p in carry["parameters"].items()}
        return {**carry, "parameters": moved}

    def _adam(self, carry: dict[str, Tree], gradient: Tree, taken: Tensor) -> dict[str, Tree]:
        b1, b2 = ADAM_BETAS
        count = carry["taken"]["steps"] + 1
        moving = taken.to(count.dtype)
        first = {n: torch.lerp(carry["first"][n], g, (1 - b1) * moving) for n, g in gradient.items()}
        second = {n: torch.lerp(carry["second"][n], g * g, (1 - b2) * moving) for n, g in gradient.items()}
        root = (1 - b2**count) ** 0.5
        rate = moving * root * self.local.rate / (1 - b1**count)
        moved = {
            n: torch.addcmul(p, first[n] / (second[n].sqrt() + ADAM_EPSILON * root), rate, value=-1)
            for n, p in carry["parameters"].items()
        }
        steps = {"steps": carry["taken"]["steps"] + moving}
        return {**carry, "first": first, "second": second, "parameters": moved, "taken": steps}
