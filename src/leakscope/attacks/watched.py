"""The inputs of batch norms and of the head at the guess, for priors on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.attacks.distances import SHORTEST
from leakscope.attacks.priors import GUESS
from leakscope.attacks.simulate import OneGradient, network_key, present_of, weights_of
from leakscope.attacks.view import Clock, Entering, Simulated, Simulator, View
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Dense, Model
from leakscope.core.padding import counting
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Round


@dataclass(frozen=True, slots=True)
class Watched:
    """The inner simulator, and what enters batch norms and head at the guess and the received weights: one more forward pass."""

    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update with the inputs of the layers."""
        simulated = self.inner(model, unknowns, seen, knowledge, clock)
        layers = (*model.norms, *(() if model.head is None else (model.head,)))
        if not layers:
            return simulated
        present = present_of(unknowns[GUESS], knowledge)
        with counting(present), noting([each.layer for each in layers]) as inputs:
            model.apply(weights_of(model, seen), seen.buffers, unknowns[GUESS], network_key(model, clock))
        values = [(each, inputs[each.layer]) for each in layers]
        return replace(
            simulated, entering=tuple(Entering(each, value, present) for each, value in values if value is not None)
        )


@dataclass(frozen=True, slots=True)
class HeadFeatures:
    """`weight * mean (f(x_i) - f_c)^2` over real examples i of class c, with `f_c = dL/dW_c / dL/db_c` inferred from the head.

    f is the head's input. `f_c` is the mean feature of a class weighted by p - 1, almost exact for one example a class (breaching's
    prior `features`). Classes without a gradient are left out; 0 without a head with a bias. Needs the simulator `Watched`.
    """

    weight: float | Tensor = 0.1

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        total = view.simulated.output.new_zeros(())
        for each in view.simulated.entering:
            if isinstance(each.layer, Dense) and each.layer.bias is not None and each.layer.bias in view.observed:
                total = total + _feature_error(each.layer, each, view)
        return self.weight * total


def _feature_error(layer: Dense, each: Entering, view: View) -> Tensor:
    """Return the mean squared difference between the features at the guess and those that the head's gradient shows."""
    rows, bias = view.observed[layer.weight], view.observed[str(layer.bias)]
    targets = view.simulated.targets  # N x classes
    usable = bias.square() > SHORTEST
    features = rows / torch.where(usable, bias, 1).unsqueeze(-1)
    known = each.present.to(rows.dtype) * (targets @ usable.to(rows.dtype))
    error = (each.value - targets @ features).square().mean(-1)
    return (known * error).sum() / known.sum().clamp_min(1)
