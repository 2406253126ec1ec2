"""Objectives for an update that a defence changed: each wrapper uses one fact of Knowledge, named in its `needs`.

A wrapper changes the updates of a view and passes it to `inner`. Nesting follows the order of the client's operations:
`Sent(Clipped(Rounded(Whitened(Match(...)))))`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks.distances import SHORTEST
from leakscope.attacks.objectives import Match, against, compares_lengths, find_link, unit_of
from leakscope.attacks.view import Objective, View
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, scale, squared_norm
from leakscope.core.types import Knowledge

MOST = 100.0  # largest weight of a tensor with little noise


def changed(view: View, simulated: Tree, observed: Tree) -> View:
    """Return the view with other updates."""
    return replace(view, simulated=replace(view.simulated, update=simulated), observed=observed)


def sent_coordinates(view: View) -> Tree:
    """Return 1 where this round sent a coordinate: `Knowledge.mask` and the observed update are not 0."""
    mask = view.knowledge.mask
    if mask is None:
        raise InputError("Sent needs Knowledge.mask: the attacker does not know which coordinates were sent")
    return {name: ((mask[name] != 0) & (value != 0)).to(value.dtype) for name, value in view.observed.items()}


def fact(value: Tensor | None, wrapper: str, name: str, meaning: str) -> Tensor:
    """Return a fact of Knowledge; raise if the attacker does not know it."""
    if value is None:
        raise InputError(f"{wrapper} needs Knowledge.{name}: the attacker does not know {meaning}")
    return value


@dataclass(frozen=True, slots=True)
class Sent:
    """The inner objective on the sent coordinates: `inner(m simulated, m observed)`, with m = 1 for coordinates of this round."""

    inner: Objective = field(default_factory=Match)

    needs: ClassVar[tuple[str, ...]] = ("mask",)

    def __call__(self, view: View) -> Tensor:
        """Return the value on the coordinates that were sent."""
        sent = sent_coordinates(view)
        simulated = {name: value * sent[name] for name, value in view.simulated.update.items()}
        observed = {name: value * sent[name] for name, value in view.observed.items()}
        return self.inner(changed(view, simulated, observed))


@dataclass(frozen=True, slots=True)
class LargestSent:
    """The inner objective where the largest coordinates were sent: an unsent one adds only its excess over the smallest sent.

    `inner(simulated, o)` with `o = observed` where sent, else `clamp(simulated, -s, s)`; s is the smallest magnitude that was
    sent, per tensor with `Knowledge.largest_each`.
    """

    inner: Objective = field(default_factory=Match)

    needs: ClassVar[tuple[str, ...]] = ("mask", "largest", "largest_each")

    def __post_init__(self) -> None:
        if not compares_lengths(self.inner) or find_link(self.inner, Clipped) is not None:
            raise InputError("LargestSent needs a distance that sees the length of an update, and no clip")

    def __call__(self, view: View) -> Tensor:
        """Return the value, including the excess of unsent coordinates."""
        simulated = view.simulated.update
        bounded = within(simulated, view.observed, sent_coordinates(view), each=view.knowledge.largest_each)
        return self.inner(changed(view, simulated, bounded))


@dataclass(frozen=True, slots=True)
class Clipped:
    """The inner objective with a clipped simulated update: `inner(s min(1, bound / ||s||), observed)`; per tensor if `bound_each`."""

    inner: Objective = field(default_factory=Match)

    needs: ClassVar[tuple[str, ...]] = ("bound", "bound_each")

    def __call__(self, view: View) -> Tensor:
        """Return the value of the clipped update."""
        bound, simulated = bound_of(view), view.simulated.update
        if view.knowledge.bound_each:
            simulated = {name: shrink({name: value}, bound)[name] for name, value in simulated.items()}
        else:
            simulated = shrink(simulated, bound)
        return self.inner(changed(view, simulated, view.observed))


@dataclass(frozen=True, slots=True)
class Rounded:
    """The inner objective beyond one rounding step: `inner(simulated, nearest) + pull inner(simulated, observed)`.

    `nearest` is the update nearest to the simulated one that quantisation to `Knowledge.bits` could have turned into the observed
    one. With few bits that is nearly any update; `pull` then keeps the guess near the observed one.
    """

    inner: Objective = field(default_factory=Match)
    pull: float = 0.0

    needs: ClassVar[tuple[str, ...]] = ("bits",)

    def __post_init__(self) -> None:
        if not 0 <= self.pull < math.inf:
            raise InputError(f"Rounded.pull must be in [0, inf), got {self.pull}")

    def __call__(self, view: View) -> Tensor:
        """Return the value beyond one rounding step."""
        bits = fact(view.knowledge.bits, "Rounded", "bits", "the bits of the quantisation")
        simulated = guess = view.simulated.update
        if compares_lengths(self.inner):  # `nearest` is constant where they differ; elsewhere the difference is 0
            guess = {name: value.detach() for name, value in simulated.items()}
        beyond = nearest(guess, view.observed, bits)
        if not self.pull:
            return self.inner(changed(view, simulated, beyond))
        value, pulled = against(self.inner, view, (beyond, view.observed))
        return value + self.pull * pulled


@dataclass(frozen=True, slots=True)
class Whitened:
    """The inner objective in units of each tensor's noise: `inner(f simulated, f observed)`, `f = sigma / sigma_each`.

    Squared L2 becomes `sum over tensors of (sigma / sigma_each)^2 ||simulated - observed||^2`, the likelihood of Gaussian noise.
    """

    inner: Objective = field(default_factory=Match)

    needs: ClassVar[tuple[str, ...]] = ("sigma", "sigma_each")

    def __call__(self, view: View) -> Tensor:
        """Return the value in units of the noise."""
        return self.against(view, (view.observed,))[0]

    def against(self, view: View, targets: Sequence[Tree]) -> list[Tensor]:
        """Return the value against each of several updates."""
        factors = noise_factors(view.knowledge)
        simulated, *scaled = (
            {name: value * factors[name] for name, value in update.items()}
            for update in (view.simulated.update, *targets)
        )
        return against(self.inner, changed(view, simulated, view.observed), scaled)


# -- what was done to an update


def bound_of(view: View) -> Tensor:
    """Return the clipping bound of one trial, in the unit of the compared update."""
    return fact(view.knowledge.bound, "Clipped", "bound", "the clip") / unit_of(view)


def noise_factors(knowledge: Knowledge) -> Tree:
    """Return for ONE trial the factor of each tensor: `sigma / sigma_each`, at most `MOST`; 1 without noise. Keeps the mean variance."""
    sigma = fact(knowledge.sigma, "Whitened", "sigma", "the noise level")
    if knowledge.sigma_each is None:
        raise InputError("Whitened needs Knowledge.sigma_each: the attacker does not know the noise of each tensor")
    levels = {name: level.maximum(sigma / MOST) for name, level in knowledge.sigma_each.items()}
    return {name: torch.where(sigma > 0, sigma / level, torch.ones_like(level)) for name, level in levels.items()}


def shrink(update: Tree, bound: Tensor | float) -> Tree:
    """Return the update times min(1, bound / norm)."""
    return scale(update, (bound / squared_norm(update).clamp_min(SHORTEST).sqrt()).clamp_max(1.0))


def within(simulated: Tree, observed: Tree, sent: Tree, *, each: bool) -> Tree:
    """Return the observed update with unsent coordinates at the value nearest to `simulated` that would not have been sent.

    That value is at most the smallest sent coordinate, of the whole update or of `each` tensor. It is detached: where it differs
    from `simulated` it is constant.
    """
    smallest = {n: torch.where(sent[n] != 0, v.abs(), torch.inf).amin() for n, v in observed.items()}
    overall = torch.stack(list(smallest.values())).amin()
    bounded = {}
    for name, value in observed.items():
        cut = smallest[name] if each else overall
        bounded[name] = torch.where(sent[name] != 0, value, simulated[name].detach().clamp(-cut, cut))
    return bounded


def nearest(simulated: Tree, observed: Tree, bits: Tensor) -> Tree:
    """Return the update nearest to `simulated` among those that quantisation could have turned into `observed`.

    With b bits a tensor has `2^(b-1) - 1` levels (at least one) on either side of 0, up to its largest magnitude. The attacker
    allows one step: stochastic rounding moves a coordinate by less than that, rounding to nearest by at most half.
    """
    candidates = {}
    for name, value in observed.items():
        step = value.abs().amax() / (torch.exp2(bits.to(value.dtype) - 1) - 1).clamp_min(1)
        candidates[name] = simulated[name].clamp(value - step, value + step)
    return candidates
