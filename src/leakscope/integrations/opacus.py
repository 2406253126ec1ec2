"""Opacus: the epsilon of DP-SGD clients (`leakscope.clients.private.PrivateClient`) by its RDP and PRV accountants (extra `dp`)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from leakscope.clients.private import PrivateClient
from leakscope.core.errors import InputError, import_extra
from leakscope.core.registry import lookup

ACCOUNTANTS = {"rdp": "RDPAccountant", "prv": "PRVAccountant"}


def epsilon(*, multiplier: float, rate: float, steps: int, delta: float, accountant: str = "prv") -> float:
    """Return the epsilon of `steps` Gaussian steps on Poisson samples of rate q, at this delta; infinity without noise.

    'rdp' composes Renyi divergences (Mironov 2017) and is never below the truth; 'prv' composes privacy loss random variables
    numerically (Gopi et al. 2021, arXiv:2106.02848) and is tighter, with an error of up to 0.01.
    """
    kind = lookup(ACCOUNTANTS, accountant, "accountant")
    if not multiplier >= 0 or not 0 < rate <= 1 or steps < 1 or not 0 < delta < 1:
        raise InputError(
            "epsilon needs multiplier >= 0, rate in (0, 1], steps >= 1 and delta in (0, 1), "
            f"got {multiplier}, {rate}, {steps}, {delta}"
        )
    ledger: Any = getattr(_accountants(), kind)()
    if multiplier == 0:
        return math.inf
    ledger.history = [(multiplier, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about orders at the edge of its list, which only loosen the bound
        return max(0.0, float(ledger.get_epsilon(delta)))  # the formulas fall below 0 for a large delta


def epsilon_of(client: PrivateClient, *, samples: int, delta: float, rounds: int = 1, accountant: str = "prv") -> float:
    """Return the epsilon of a client with `samples` examples that takes part in `rounds` rounds."""
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, got {rounds}")
    return epsilon(
        multiplier=client.multiplier,
        rate=client.rate(samples),
        steps=rounds * client.steps(samples),
        delta=delta,
        accountant=accountant,
    )


def promise_of(*, delta: float, accountant: str = "prv") -> Callable[[PrivateClient, int, int], float]:
    """Return the function (client, examples, rounds) -> epsilon, after checking that the extra is installed."""
    lookup(ACCOUNTANTS, accountant, "accountant")
    _accountants()

    def promise(client: PrivateClient, samples: int, rounds: int) -> float:
        return epsilon_of(client, samples=samples, delta=delta, rounds=rounds, accountant=accountant)

    return promise


def multiplier_for(*, target: float, rate: float, steps: int, delta: float, accountant: str = "prv") -> float:
    """Return the smallest noise multiplier (to 1 %) whose epsilon is at most `target`, by bisection."""
    if not 0 < target < math.inf:
        raise InputError(f"the epsilon to reach must be in (0, inf), got {target}")

    def reached(multiplier: float) -> bool:
        return epsilon(multiplier=multiplier, rate=rate, steps=steps, delta=delta, accountant=accountant) <= target

    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
        if high > 1e6:
            raise InputError(f"no noise multiplier up to 1e6 reaches epsilon {target}")
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _accountants() -> ModuleType:
    return import_extra("opacus.accountants", "dp", __name__)
