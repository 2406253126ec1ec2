"""Theorem 2.1 of the SPN paper as an attack: for one sample and a first dense layer, solve B x = W. No optimisation.

Fan et al. 2020, arXiv:2006.11601. The index set takes the unit with the largest bias gradient for every input, so x = W_m / B_m;
with a known mask, the largest among units whose pair was sent (the theorem holds for any index set). `analytic` is better under
noise because it weighs all units by least squares. `analysis/linear_system.py` bounds the error of this attack.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, first_layer, labels_of, no_ratio, relative_residual
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds
from leakscope.learning.dense_system import select, solve, strongest_unit


@dataclass(frozen=True, slots=True)
class LinearSystem:
    """Solve B x = W for the first dense layer, with the unit of the largest bias gradient; one sample per trial.

    A singular system diverges (inputs NaN, with a warning). A residual over all units above `threshold` counts as exhausted.
    """

    name: str = "linear_system"
    threshold: float = 1e-3

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the solution of every trial; the mismatch is the relative residual over all units."""
        entry = model.entry
        check_observation(model, observation, knowledge, seeds)
        del execution
        if (problem := no_ratio(model)) is not None:
            raise InputError(problem)
        if entry is None or entry.bias is None or {entry.weight, entry.bias} & model.private:
            raise InputError(
                f"model {model.name!r} does not begin with a dense layer whose weight and bias are sent: theorem 2.1 has no "
                "system to solve; use cpl, dlg or ig"
            )
        if knowledge.samples != 1:
            raise InputError(
                f"the linear system holds for one sample, the update has {knowledge.samples}: use analytic, cpl or ig"
            )
        weight, bias, pairs = first_layer(entry.weight, entry.bias, observation, knowledge)
        diagonal, right = select(weight, bias, index_set(weight, bias, pairs))
        _warn_of_singular(diagonal)
        flat = solve(diagonal, right)[:, None]
        labels = labels_of(model, observation, knowledge, seeds)
        inputs = flat.unflatten(-1, tuple(knowledge.input_shape))
        pictures = knowledge.scaling.unscale(inputs, len(knowledge.input_shape))
        return exact_result(pictures, labels, relative_residual(weight, bias, flat, pairs), self.threshold)


def index_set(weight: Tensor, bias: Tensor, pairs: Tensor | None) -> Tensor:
    """Return the unit of every input, T x F: the largest bias gradient, among the sent pairs if an input has any."""
    strongest = strongest_unit(bias, weight.shape[-1])
    if pairs is None:
        return strongest
    return torch.where(pairs.any(1), (bias.abs()[..., None] * pairs).argmax(1), strongest)


def _warn_of_singular(diagonal: Tensor) -> None:
    """Warn how many systems are singular: the theorem says nothing about them, so they do not show that a defence works."""
    singular = (diagonal == 0).any(-1)
    if bool(singular.any()):
        warnings.warn(
            f"the linear system of {int(singular.sum())} of {len(singular)} trials is singular, theory not applicable: no unit of the "
            "first layer has a bias gradient; these trials count as diverged",
            stacklevel=3,
        )
