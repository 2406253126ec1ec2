"""The Secret Polarization Network as functions of ONE trial: a second head beside the public one, and its loss.

With backbone features h, public head u = W h + b (C logits), private head v = V h + c (K numbers) and a secret code t in {-1,
+1}^K for the class of the example, the loss of an example is

    a1 * CE(u, y) + a2 * sum_k max(m - v_k t_k, 0),      m >= 1.

Fan et al. 2020, "Rethinking privacy preserving deep learning", arXiv:2006.11601, equations 4 and 18. (Equation 5 as printed sums
the codes of all classes; the appendix, algorithms and lemmas use the example's code.) The heads are computed as one dense layer
with C + K rows, so any network that ends in a dense layer can have a second head; outputs and targets have C + K columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.model import Apply, Dense, Model
from leakscope.core.tree import Tree
from leakscope.learning.losses import Loss

WEIGHT = "polarisation.weight"
BIAS = "polarisation.bias"
CODES = "polarisation.codes"


def polarisation_loss(output: Tensor, codes: Tensor, margin: float | Tensor = 1.0) -> Tensor:
    """Return `sum_k max(m - v_k t_k, 0)` for each example (equation 18); 0 if every bit has the margin.

    >>> polarisation_loss(torch.tensor([[2.0, -0.5]]), torch.tensor([[1.0, 1.0]]))
    tensor([1.5000])
    """
    return (margin - output * codes).clamp_min(0).sum(-1)


@dataclass(frozen=True, slots=True)
class PolarisedLoss:
    """`a1 * loss(u, y) + a2 * polarisation(v, t)` for each example; output and target hold both parts side by side."""

    loss: Loss
    classes: int
    alpha1: float | Tensor
    alpha2: float | Tensor
    margin: float | Tensor = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example."""
        public = self.loss(output[..., : self.classes], target[..., : self.classes])
        private = polarisation_loss(output[..., self.classes :], target[..., self.classes :], self.margin)
        return self.alpha1 * public + self.alpha2 * private


@dataclass(frozen=True, slots=True)
class TwoHeads:
    """A network whose last dense layer has the rows of both heads: N x (C + K) instead of N x C; it ignores the codes."""

    apply: Apply
    head: Dense

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        """Return the outputs of both heads side by side, and the buffers."""
        joined = {name: value for name, value in parameters.items() if name not in (WEIGHT, BIAS, CODES)}
        joined[self.head.weight] = torch.cat([joined[self.head.weight], parameters[WEIGHT]])
        if self.head.bias is not None:
            joined[self.head.bias] = torch.cat([joined[self.head.bias], parameters[BIAS]])
        return self.apply(joined, buffers, x, key)


def with_second_head(model: Model, bits: int) -> Model:
    """Return the network with a private dense head of `bits` outputs and codes, all zero, in `Model.private` (not shared)."""
    head = public_head(model)
    weight = model.parameters[head.weight]
    added = {WEIGHT: weight.new_zeros(bits, weight.shape[1]), CODES: weight.new_zeros(model.classes, bits)}
    if head.bias is not None:
        added[BIAS] = weight.new_zeros(bits)
    return replace(
        model,
        name=f"{model.name} with a private head",
        apply=TwoHeads(model.apply, head),
        parameters={**model.parameters, **added},
        private=model.private | added.keys(),
    )


def public_head(model: Model) -> Dense:
    """Return the dense layer that computes the output; raise if there is none."""
    if model.head is None:
        raise InputError(
            f"model {model.name!r} does not end in a dense layer of its own: a polarization head needs its features"
        )
    return model.head


def with_codes(targets: Tensor, codes: Tensor) -> Tensor:
    """Return targets N x (C + K): the class probabilities, then the code of the class (mixed for a soft label)."""
    if targets.shape[-1] > codes.shape[-2]:
        raise InputError(
            f"more classes than codes: {targets.shape[-1]} classes need a code each, got {codes.shape[-2]} codes"
        )
    return torch.cat([targets, targets @ codes[..., : targets.shape[-1], :].to(targets.dtype)], dim=-1)
