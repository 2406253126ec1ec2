"""What SPN's theory says of every trial of `linear_system`, beside the error that was made (theorem 2.2).

Kept with the record like all that is learned beside the pictures, so `show`, exports and the page have it. The clean system is the
client's own: the attacker sees the noisy one alone.
"""

from __future__ import annotations

from torch import Tensor

from leakscope.analysis.linear_system import inspect_layer
from leakscope.attacks.exact.analytic import first_layer
from leakscope.attacks.exact.linear_system import index_set
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation


def theory_of(model: Model, clean: Observation, seen: Observation, knowledge: Knowledge) -> dict[str, Tensor]:
    """Return norms, condition, bound and error of each trial's system, as the attack takes it; not finite where there is none.

    `condition_2` is 1 where condition (2) holds and 0 where it does not; only where it holds there is an `error_bound`.
    """
    entry = model.entry
    if entry is None or entry.bias is None:
        return {}
    weight, bias, _ = first_layer(entry.weight, entry.bias, clean, knowledge)
    noisy_weight, noisy_bias, pairs = first_layer(entry.weight, entry.bias, seen, knowledge)
    units = index_set(noisy_weight, noisy_bias, pairs)
    report = inspect_layer(weight, bias, noisy_weight, noisy_bias, units)
    return {
        "norm_b": report.norm_b,
        "norm_e": report.norm_e,
        "norm_inverse_e": report.norm_inverse_e,
        "condition": report.condition,
        "condition_2": report.holds.double().where(report.applicable, float("nan")),
        "error_bound": report.bound,
        "error": report.error,
    }
