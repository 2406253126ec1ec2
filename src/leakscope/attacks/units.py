"""Units of an objective's value: gains for the optimiser and the priors, and the noise floor as the unit of what is reported.

The optimiser minimises `gain * distance`. L-BFGS stops at absolute tolerances, so the value must not be too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks.defended import Clipped, LargestSent, Rounded, Sent, Whitened, bound_of, fact, sent_coordinates
from leakscope.attacks.distances import FLOORED, squared_l2
from leakscope.attacks.objectives import (
    Match,
    check_gain,
    dtype_of,
    find_link,
    innermost,
    length_in,
    power_in_length,
    unit_of,
)
from leakscope.attacks.view import Objective, View
from leakscope.core.errors import InputError
from leakscope.core.tree import squared_norm

LEAST = 1e-9  # the smallest value that counts as explained, without noise and slack
Gain = Callable[[View, int], Tensor | float]  # of one trial, and of the power of a length that the value grows with


def needs_of(gain: object) -> tuple[str, ...]:
    """Return the fields of Knowledge that a gain reads."""
    return tuple(getattr(gain, "needs", ()))


@dataclass(frozen=True, slots=True)
class Scaled:
    """`gain * inner`; the gain is a number or depends on the facts of a trial (`PerGradient`, `AtLeast`, `ToLength`)."""

    inner: Objective = field(default_factory=Match)
    gain: float | Gain = 1.0

    def __post_init__(self) -> None:
        if not callable(self.gain):
            check_gain("Scaled.gain", self.gain)

    needs = property(lambda scaled: needs_of(scaled.gain))

    def __call__(self, view: View) -> Tensor:
        """Return the scaled value."""
        return self.factor(view) * self.inner(view)

    def factor(self, view: View) -> Tensor | float:
        """Return the gain of one trial."""
        return _gain(self.gain, view, power_in_length(self.inner))


@dataclass(frozen=True, slots=True)
class PerGradient:
    """`gain / L^p`: the value of a weight change counts as that of its mean gradient; L is the length of the update."""

    gain: float = 1.0

    needs: ClassVar[tuple[str, ...]] = ("local",)

    def __call__(self, view: View, power: int) -> Tensor | float:
        """Return the gain of one trial."""
        return self.gain / length_in(view) ** power


@dataclass(frozen=True, slots=True)
class AtLeast:
    """`max(least, gain)`."""

    gain: float | Gain
    least: float

    def __post_init__(self) -> None:
        check_gain("AtLeast.least", self.least)

    needs = property(lambda scaled: needs_of(scaled.gain))

    def __call__(self, view: View, power: int) -> Tensor | float:
        """Return the gain of one trial."""
        gain = _gain(self.gain, view, power)
        return gain.clamp_min(self.least) if isinstance(gain, Tensor) else max(gain, self.least)


@dataclass(frozen=True, slots=True)
class ToLength:
    """`max((length / bound)^p, gain)`: an update clipped to `Knowledge.bound` counts as if it had this length."""

    gain: float | Gain
    length: float

    needs = property(lambda scaled: ("bound", *needs_of(scaled.gain)))

    def __post_init__(self) -> None:
        check_gain("ToLength.length", self.length)

    def __call__(self, view: View, power: int) -> Tensor:
        """Return the gain of one trial."""
        full = (self.length / bound_of(view).double()) ** power
        return full.to(dtype_of(view)).clamp_min(_gain(self.gain, view, power))


def _gain(gain: float | Gain, view: View, power: int) -> Tensor | float:
    return gain(view, power) if callable(gain) else gain


@dataclass(frozen=True, slots=True)
class InNoiseUnits:
    """The inner objective, reported in units of the value that noise of `Knowledge.sigma` leaves at the truth: explained under 1.

    `explained = max(gain (n - p) sigma^2, slack)` for squared L2, its root for L2; n are the coordinates compared, p the pixels
    that can be fitted to the noise (at most n / 2 are counted).
    """

    inner: Objective = field(default_factory=Match)
    slack: float = 0.0

    needs: ClassVar[tuple[str, ...]] = ("sigma",)

    def __post_init__(self) -> None:
        if self.slack < 0:
            raise InputError(f"InNoiseUnits.slack must not be below 0, got {self.slack}")
        self._match()

    def __call__(self, view: View) -> Tensor:
        """Return the inner value."""
        return self.inner(view)

    def explained(self, view: View) -> Tensor:
        """Return the value that noise alone leaves: at least the slack, never 0."""
        sigma = fact(view.knowledge.sigma, "InNoiseUnits", "sigma", "the noise level") / unit_of(view)
        masked = find_link(self.inner, Sent) or find_link(self.inner, LargestSent)
        compared = sent_coordinates(view) if masked else {n: torch.ones_like(v) for n, v in view.observed.items()}
        pixels = view.knowledge.samples * math.prod(view.knowledge.input_shape)
        number = torch.stack([value.sum() for value in compared.values()]).sum()
        left = (1 - pixels / number.clamp_min(1)).clamp_min(0.5)
        match, scaled = self._match(), find_link(self.inner, Scaled)
        energy = squared_norm(match.weighed(compared)) * left * sigma.square()
        floor = energy if match.distance is squared_l2 else energy.sqrt()
        gain = match.gain if scaled is None else scaled.factor(view) * match.gain
        return (gain * floor).clamp_min(max(self.slack, LEAST))

    def _match(self) -> Match:
        match = innermost(self.inner)
        if not isinstance(match, Match) or match.distance not in FLOORED:
            raise InputError("InNoiseUnits needs a distance whose value under noise is known: squared_l2 or l2")
        return match


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "match": Match,
    "sent": Sent,
    "largest_sent": LargestSent,
    "clipped": Clipped,
    "rounded": Rounded,
    "whitened": Whitened,
    "scaled": Scaled,
    "in_noise_units": InNoiseUnits,
}
GAINS: dict[str, Callable[..., Gain]] = {"per_gradient": PerGradient, "at_least": AtLeast, "to_length": ToLength}
