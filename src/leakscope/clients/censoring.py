"""Censoring of rare units: a client keeps back what one of its samples alone would give away. Marchand et al. 2023, arXiv:2306.07644.

A unit of a first dense layer that a single sample activates divides into that sample, also within a sum over clients whose other samples
leave it silent. A client that sends 0 for every unit that fewer than q of its samples activate leaves only mixtures of q samples. After
local training a sample counts if it activates the unit both with the weights that the client got and with those it ends with. That is
no guarantee for the steps between; the authors count in every step.
"""

from __future__ import annotations

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.tree import Tree


def censored_layer(model: Model) -> tuple[str, str]:
    """Return the names of the weights and biases of the layer that is censored: the first dense one; refuse a network without it."""
    entry: Dense | None = model.entry
    if entry is None or entry.bias is None:
        raise InputError(
            f"Client.censor needs a network that begins with a dense layer with a bias; {model.name!r} does not"
        )
    return entry.weight, entry.bias


def censor_rare_units(
    model: Model, update: Tree, before: Tree, after: Tree, inputs: Tensor, mask: Tensor, least: int
) -> Tree:
    """Return the update of ONE client with 0 for all units of the first dense layer that fewer than `least` of its samples activate."""
    weight, bias = censored_layer(model)
    flat = inputs.flatten(1)
    active = (flat @ before[weight].mT + before[bias] > 0) & (flat @ after[weight].mT + after[bias] > 0)
    kept = ((active & mask[:, None]).sum(0) >= least).to(update[bias])
    return {**update, weight: update[weight] * kept[:, None], bias: update[bias] * kept}
