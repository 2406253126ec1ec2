"""The objective: a distance between the simulated and the observed update, with what the attacker knows of how that was made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.attacks.distances import FLOORED, SCALED, SHORTEST, Distance, power_of, squared_l2
from leakscope.attacks.view import Objective, View
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, scale, squared_norm
from leakscope.core.types import Knowledge, LocalTraining

MOST = 100.0  # times at most that a tensor counts for its little noise
LEAST = 1e-9  # the smallest mismatch that counts as explained, where neither noise nor slack says more


def local_steps(local: LocalTraining, knowledge: Knowledge) -> Tensor | int:
    """Return how many local steps the client of ONE trial takes: `LocalTraining.steps` of its own size, where that is told."""
    if knowledge.present is None or local.batch_size is None:
        return local.steps(knowledge.samples)
    return local.epochs * -(-knowledge.present.sum(-1).clamp_min(1) // local.batch_size)


def update_length(knowledge: Knowledge) -> Tensor | float:
    """Return how many gradients, times the rate, the update of ONE trial sums up: `LocalTraining.length` of its own size."""
    local = knowledge.local
    if local is None:
        raise InputError("the length of an update needs Knowledge.local (epochs, batch size, rate): it was not told")
    steps, m = local_steps(local, knowledge), local.momentum
    if isinstance(steps, int):
        return float(local.length([knowledge.samples]))
    many = steps.double()
    return local.rate * (many - m * (1 - m**many) / (1 - m)) / (1 - m)


@runtime_checkable
class Explains(Protocol):
    """An objective that knows how much of its value is no error of the guess, such as noise that was added."""

    def __call__(self, view: View) -> Tensor:
        """Return the value that is minimised."""
        ...

    def explained(self, view: View) -> Tensor | None:
        """Return the value at which the update is explained; None where that is not known."""
        ...


def reported(objective: Objective, view: View, value: Tensor) -> Tensor:
    """Return the mismatch that is shown, stops a trial and chooses among restarts: the value over what counts as explained.

    The optimiser minimises the value itself, in the unit of the distance: L-BFGS has absolute tolerances, and fails where
    weak noise makes the unit a thousand times as small.
    """
    explained = objective.explained(view) if isinstance(objective, Explains) else None
    return value if explained is None else value / explained


@dataclass(frozen=True, slots=True)
class Match:
    """The distance between simulated and observed update, using the facts about defences that the attacker was told.

    `weights` maps parameter names to factors on both sides (names not listed count 1). The rest is for an attacker who knows
    (see `aware`), and each needs its field of Knowledge:

    - `masked` compares only what was sent: where `Knowledge.mask` is not 0 and this round's update is not 0 either
    - `largest` also counts by how much a coordinate that was not sent is larger than the smallest that was (of its tensor where
      `Knowledge.largest_each`): it would have been sent
    - `clipped` shrinks the simulated update (or each of its tensors) to `Knowledge.bound`, as the client did, before comparing
    - `rounded` compares with the nearest update that quantisation to `Knowledge.bits` could have turned into the observed one;
      `pull` adds so much of the distance to the observed one itself: few bits could have come from nearly anything, and rounding
      errs on both sides
    - `whitened` counts the differences of every tensor in units of its noise: both sides times `sigma / sigma_each`, so that squared
      L2 becomes `sum over tensors of (sigma / sigma_each)^2 ||simulated - observed||^2`, the likelihood of Gaussian noise
    - `slack` reports the mismatch in units of what noise of `Knowledge.sigma` leaves at the truth, or of `slack` where that is
      more: under 1 the update is explained. For squared L2 noise leaves `(n - p) sigma^2`, n the coordinates compared and p
      the pixels that can be fitted to it (at most n / 2 are counted), for L2 its root. What is minimised stays as it is

    `gain` multiplies the mismatch; what it is multiplied by is at least `least` and, where the simulated update is clipped, at least
    `(length / bound)^power`, so that a clipped update counts as if it had this length: each trial by its own bound.

    Two fields are for weights after local training, and need `Knowledge.local`: an update sums up gradients, `update_length` of
    them times the rate. `as_gradient` says that what is compared was divided by it, so bound and sigma are too; `per_gradient`
    compares changes of weights as they are, and divides `gain` instead.
    """

    distance: Distance = squared_l2
    weights: tuple[tuple[str, float], ...] = ()
    masked: bool = False
    largest: bool = False
    clipped: bool = False
    rounded: bool = False
    pull: float = 0.0
    slack: float | None = None
    whitened: bool = False
    gain: float = 1.0
    least: float = 0.0
    length: float = 0.0
    as_gradient: bool = False
    per_gradient: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.gain < math.inf:
            raise InputError(f"Match.gain must be in (0, inf), got {self.gain}")
        for name in ("least", "length"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"Match.{name} must be in [0, inf), got {getattr(self, name)}")
        if self.length and not (self.clipped and self.distance in SCALED):
            raise InputError("Match.length needs Match.clipped and a distance that sees the scale of an update")
        if self.as_gradient and self.per_gradient:
            raise InputError("Match.as_gradient and Match.per_gradient cannot both be true: divide by the length once")
        if not 0 <= self.pull < math.inf:
            raise InputError(f"Match.pull must be in [0, inf), got {self.pull}")
        if self.largest and not (self.masked and self.distance in SCALED and not self.clipped):
            raise InputError(
                "Match.largest needs Match.masked, a distance that sees the scale of an update, and no clip"
            )
        if self.slack is not None and self.slack < 0:
            raise InputError(f"Match.slack must not be below 0, got {self.slack}")
        if self.slack is not None and self.distance not in FLOORED:
            raise InputError("Match.slack needs a distance whose value under noise is known: squared_l2 or l2")

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch of one trial in one round, in the unit of the distance."""
        simulated, observed = (self._counted(view, update) for update in self.compared(view))
        distance = self.distance(simulated, observed)
        if self.rounded and self.pull:
            sent = self._sent(view)
            seen = view.observed if sent is None else {name: v * sent[name] for name, v in view.observed.items()}
            distance = distance + self.pull * self.distance(simulated, self._counted(view, seen))
        return self._gain(view) * distance

    def explained(self, view: View) -> Tensor | None:
        """Return the mismatch that noise alone leaves, at least the slack, never 0; None where no slack is set."""
        if self.slack is None:
            return None
        sigma = _told(view.knowledge.sigma, "slack", "sigma", "the noise level") / self._unit(view)
        sent = self._sent(view)
        counted = {name: torch.ones_like(v) for name, v in view.observed.items()} if sent is None else sent
        fitted = view.knowledge.samples * math.prod(view.knowledge.input_shape)
        number = torch.stack([value.sum() for value in counted.values()]).sum()
        left = (1 - fitted / number.clamp_min(1)).clamp_min(0.5)
        energy = squared_norm(self._weighed(counted)) * left * sigma.square()
        floor = energy if self.distance is squared_l2 else energy.sqrt()
        return (self._gain(view) * floor).clamp_min(max(self.slack, LEAST))

    def compared(self, view: View) -> tuple[Tree, Tree]:
        """Return the simulated and the observed update as the facts let them be compared: sent, clipped, within the rounding."""
        simulated, observed = view.simulated.update, view.observed
        sent = self._sent(view)
        if sent is not None and self.largest:
            observed = within(simulated, observed, sent, each=view.knowledge.largest_each)
        elif sent is not None:
            simulated = {name: value * sent[name] for name, value in simulated.items()}
            observed = {name: value * sent[name] for name, value in observed.items()}
        if self.clipped:
            bound = self._bound(view)
            if view.knowledge.bound_each:
                simulated = {name: shrink({name: value}, bound)[name] for name, value in simulated.items()}
            else:
                simulated = shrink(simulated, bound)
        if self.rounded:
            bits = _told(view.knowledge.bits, "rounded", "bits", "the bits of the quantisation")
            still = (
                self.distance in SCALED
            )  # where the two differ the nearest does not move, and elsewhere nothing is left
            guess = {name: value.detach() for name, value in simulated.items()} if still else simulated
            observed = nearest(guess, observed, bits)
        return simulated, observed

    def _sent(self, view: View) -> Tree | None:
        """Return 1 where this round's update has a coordinate; None where all count."""
        if not self.masked:
            return None
        if view.knowledge.mask is None:
            raise InputError("Match.masked needs Knowledge.mask: the attacker was not told which coordinates were sent")
        mask = view.knowledge.mask
        return {name: ((mask[name] != 0) & (value != 0)).to(value.dtype) for name, value in view.observed.items()}

    def _counted(self, view: View, update: Tree) -> Tree:
        """Return an update times what each of its tensors counts."""
        if self.whitened:
            factors = noise_factors(view.knowledge)
            update = {name: value * factors[name] for name, value in update.items()}
        return self._weighed(update)

    def _weighed(self, update: Tree) -> Tree:
        if not self.weights:
            return update
        factors = dict(self.weights)
        unknown = sorted(set(factors) - set(update))
        if unknown:
            raise InputError(f"Match.weights names no parameter of the update: {', '.join(unknown)}")
        return {name: value * factors.get(name, 1.0) for name, value in update.items()}

    def _unit(self, view: View) -> Tensor | float:
        """Return what 1 of the compared update was in the update as sent."""
        return _length(view) if self.as_gradient else 1.0

    def _bound(self, view: View) -> Tensor:
        """Return the clip of one trial, in the unit of what is compared."""
        return _told(view.knowledge.bound, "clipped", "bound", "the clip") / self._unit(view)

    def _gain(self, view: View) -> Tensor | float:
        """Return what the mismatch of one trial is multiplied by: of its own facts alone, whatever trials run beside it."""
        power = power_of(self.distance)
        gain: Tensor | float = self.gain / _length(view) ** power if self.per_gradient and power else self.gain
        gain = gain.clamp_min(self.least) if isinstance(gain, Tensor) else max(gain, self.least)
        if not self.length:
            return gain
        full = (self.length / self._bound(view).double()) ** power
        return full.to(_dtype(view)).clamp_min(gain)


def _length(view: View) -> Tensor | float:
    """Return the length of the update in the dtype of the update."""
    length = update_length(view.knowledge)
    return length if isinstance(length, float) else length.to(_dtype(view))


def _dtype(view: View) -> torch.dtype:
    return next(iter(view.observed.values())).dtype


def _told(fact: Tensor | None, field: str, name: str, words: str) -> Tensor:
    if fact is None:
        raise InputError(f"Match.{field} needs Knowledge.{name}: the attacker was not told {words}")
    return fact


def noise_factors(knowledge: Knowledge) -> Tree:
    """Return for ONE trial what each tensor is multiplied by: `sigma / sigma_each`, at most `MOST`, and 1 without noise.

    `sigma^2` is the mean of the variances over all coordinates, so the noise has the same energy as before, now spread evenly.
    """
    sigma = _told(knowledge.sigma, "whitened", "sigma", "the noise level")
    if knowledge.sigma_each is None:
        raise InputError(
            "Match.whitened needs Knowledge.sigma_each: the attacker was not told the noise of each tensor"
        )
    levels = {name: level.maximum(sigma / MOST) for name, level in knowledge.sigma_each.items()}
    return {name: torch.where(sigma > 0, sigma / level, torch.ones_like(level)) for name, level in levels.items()}


def shrink(update: Tree, bound: Tensor | float) -> Tree:
    """Return the update times min(1, bound / norm)."""
    return scale(update, (bound / squared_norm(update).clamp_min(SHORTEST).sqrt()).clamp_max(1.0))


def within(simulated: Tree, observed: Tree, sent: Tree, *, each: bool) -> Tree:
    """Return the observed update with, where nothing was sent, the value nearest to `simulated` that would not have been sent.

    That is one no larger than the smallest coordinate sent: of the whole update, or `each` tensor's own. No gradient flows in it:
    where the two differ the nearest does not move, and elsewhere nothing is left.
    """
    smallest = {n: torch.where(sent[n] != 0, v.abs(), torch.inf).amin() for n, v in observed.items()}
    least = torch.stack(list(smallest.values())).amin()
    made = {}
    for name, seen in observed.items():
        cut = smallest[name] if each else least
        made[name] = torch.where(sent[name] != 0, seen, simulated[name].detach().clamp(-cut, cut))
    return made


def nearest(simulated: Tree, observed: Tree, bits: Tensor) -> Tree:
    """Return the update nearest to `simulated` among those that quantisation could have made `observed` of.

    With b bits a tensor has `2^(b-1) - 1` levels (at least one) on either side of 0, up to its largest magnitude, which
    quantisation keeps; rounding at random moves a coordinate by less than one of these steps, rounding to the nearest by at
    most half. The attacker is not told which, so one step.
    """
    made = {}
    for name, seen in observed.items():
        step = seen.abs().amax() / (torch.exp2(bits.to(seen.dtype) - 1) - 1).clamp_min(1)
        made[name] = simulated[name].clamp(seen - step, seen + step)
    return made
