"""The theory of the SPN paper where it applies: one sample, one dense layer, the noisy linear system solved and bounded.

Fan et al. 2020, arXiv:2006.11601, theorem 2.2: with B_I x = W_I the system of a dense layer (`learning/dense_system.py`) and
perturbations E_B, E_W, if

    ||B_I^-1 E_B|| < 1                                                                     (2)

then the solution x* of (B_I + E_B) x* = W_I + E_W exists and

    ||x* - x|| / ||x||  <=  k(B_I) / (1 - ||B_I^-1 E_B||) * (||E_B|| / ||B_I|| + ||E_W|| / ||W_I||).       (3)

Vectors have the Euclidean norm, matrices the induced norm (of a diagonal matrix: its largest entry).

**Limits of (2).** It is sufficient for the bound, not necessary for an attack, so violating it does not defeat one: E_B = 99 B_I,
E_W = 99 W_I has ||B_I^-1 E_B|| = 99 and x* = x. The paper's "guaranteed to be defeated" does not follow. (Its proof of (3) uses
||x*|| <= ||x|| / (1 - ||B_I^-1 E_B||), which is wrong if E_W is not 0; the bound itself is right:
x* - x = (I + B_I^-1 E_B)^-1 B_I^-1 (E_W - E_B x), and ||W_I|| <= ||B_I|| ||x||.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.learning.dense_system import select, solve, strongest_unit

SINGULAR = "theory not applicable: B_I is singular (of a layer: a chosen unit has no bias gradient)"
NOT_FINITE = "theory not applicable: the system or its perturbation holds NaN or infinity"


@dataclass(frozen=True, slots=True)
class SystemReport:
    """Theory and measurement for T systems; one value per trial.

    `applicable` is False if B_I is singular (exactly or in float64) or a number is not finite (the norms are then NaN); the other
    fields are then meaningless. `bound` is infinite if condition (2) fails, `error` is NaN if the noisy system has no solution.
    `solution` is x*, T x N.
    """

    norm_b: Tensor
    norm_e: Tensor
    norm_inverse_e: Tensor
    condition: Tensor
    applicable: Tensor
    holds: Tensor
    bound: Tensor
    error: Tensor
    solution: Tensor

    __repr__ = short_repr

    def words(self, trial: int) -> str:
        """Return one trial as a sentence."""
        if not bool(self.applicable[trial]):
            return NOT_FINITE if bool(self.norm_b[trial].isnan()) else SINGULAR
        facts = (
            f"||B|| {float(self.norm_b[trial]):.3g}, ||E_B|| {float(self.norm_e[trial]):.3g}, "
            f"||B^-1 E_B|| {float(self.norm_inverse_e[trial]):.3g}, condition number {float(self.condition[trial]):.3g}"
        )
        error, bound = float(self.error[trial]), float(self.bound[trial])
        if not bool(self.holds[trial]):
            return f"{facts}: (2) does not hold, so there is no bound; error {error:.3g}"
        if error <= bound:
            return f"{facts}: (2) holds, error {error:.3g} under the bound {bound:.3g}"
        return f"{facts}: (2) holds, error {error:.3g} by rounding, the bound is {bound:.3g}"


def inspect_layer(
    weight: Tensor, bias: Tensor, sent_weight: Tensor, sent_bias: Tensor, units: Tensor | None = None
) -> SystemReport:
    """Return the report of a dense layer: gradients T x M x N and T x M of one sample each, before and after a defence.

    `units` (T x N) is the index set I; by default the unit with the largest bias gradient as sent, as an attacker would choose.
    """
    if weight.ndim != 3 or sent_weight.shape != weight.shape or sent_bias.shape != bias.shape:
        raise InputError(
            f"gradients must be T x M x N and T x M, before and after alike, got {tuple(weight.shape)}, "
            f"{tuple(bias.shape)}, {tuple(sent_weight.shape)}, {tuple(sent_bias.shape)}"
        )
    chosen = strongest_unit(sent_bias, weight.shape[-1]) if units is None else _units(units, weight.shape[1])
    b, w = (part.double() for part in select(weight, bias, chosen))
    noisy_b, noisy_w = (part.double() for part in select(sent_weight, sent_bias, chosen))
    e_b, e_w = noisy_b - b, noisy_w - w
    applicable = (b != 0).all(-1)
    safe = torch.where(b == 0, 1.0, b)
    return report(
        finite=are_finite(b, w, e_b, e_w),
        norm_b=b.abs().amax(-1),
        norm_inverse=1 / safe.abs().amin(-1),
        norm_e=e_b.abs().amax(-1),
        norm_inverse_e=(e_b / safe).abs().amax(-1),
        w=w,
        e_w=e_w,
        x=solve(b, w),
        solution=solve(noisy_b, noisy_w),
        applicable=applicable,
    )


def _units(units: Tensor, number: int) -> Tensor:
    """Return an index set unchanged; raise if it names no unit of the layer."""
    if units.is_floating_point() or units.dtype == torch.bool:
        raise InputError(f"units must be whole numbers, got {units.dtype}")
    outside = units[(units < 0) | (units >= number)]
    if len(outside):
        raise InputError(f"units must name units of the layer (0 .. {number - 1}), got {int(outside[0])}")
    return units.long()


def report(
    *,
    finite: Tensor,
    norm_b: Tensor,
    norm_inverse: Tensor,
    norm_e: Tensor,
    norm_inverse_e: Tensor,
    w: Tensor,
    e_w: Tensor,
    x: Tensor,
    solution: Tensor,
    applicable: Tensor,
) -> SystemReport:
    """Return the report of T systems from their norms, right sides and solutions."""
    condition, applicable = norm_b * norm_inverse, applicable & finite
    holds = applicable & (norm_inverse_e < 1)
    noise = _ratio(norm_e, norm_b) + _ratio(_length(e_w), _length(w))
    bound = torch.where(holds, condition / (1 - norm_inverse_e) * noise, torch.inf)
    void = torch.nan
    return SystemReport(
        norm_b=torch.where(finite, norm_b, void),
        norm_e=torch.where(finite, norm_e, void),
        norm_inverse_e=torch.where(applicable, norm_inverse_e, void),
        condition=torch.where(applicable, condition, torch.inf),
        applicable=applicable,
        holds=holds,
        bound=torch.where(applicable, bound, void),
        error=torch.where(applicable, _ratio(_length(solution - x), _length(x)), void),
        solution=torch.where(finite[:, None], solution, void),
    )


def are_finite(*parts: Tensor) -> Tensor:
    """Return for each system whether all its numbers are finite."""
    return torch.stack([part.isfinite().flatten(1).all(1) for part in parts]).all(0)


def _length(vector: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vector, dim=-1)
    return length


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """Return top / bottom, 0 if both are 0."""
    return torch.where((top == 0) & (bottom == 0), 0.0, top / bottom)
