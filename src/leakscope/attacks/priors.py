"""Priors: each is a penalty on one trial times its weight, a number or one value per trial (a tensor of length T)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.distances import cosine
from leakscope.attacks.view import Prior, View
from leakscope.core import random
from leakscope.core.errors import InputError

GUESS = "guess"
SMOOTH = 1e-8  # under a square root whose argument may be 0


def _differences(x: Tensor, circular: bool) -> tuple[Tensor, Tensor]:
    if circular:
        return x - x.roll(1, dims=-1), x - x.roll(1, dims=-2)
    return x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]


@dataclass(frozen=True, slots=True)
class TotalVariation:
    """`weight * (mean |dx| + mean |dy|)` of the guess; `power=2` squares the differences.

    IG and ATS: power 1, scale 1. SME: power 1, scale 1/2. DLFA: power 2, circular, summed instead of averaged.
    """

    weight: float | Tensor = 1e-4
    power: int = 1
    scale: float = 1.0
    circular: bool = False
    total: bool = False

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise InputError(f"TotalVariation.power must be 1 or 2, got {self.power}")
        if isinstance(self.weight, float) and not math.isfinite(self.weight):
            raise InputError(f"TotalVariation.weight must be finite, got {self.weight}")

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        shape = view.knowledge.input_shape
        if len(shape) < 3:
            raise InputError(
                f"TotalVariation needs pictures (C x H x W), the input has shape {tuple(shape)}; leave it out"
            )
        across, down = _differences(view.unknowns[GUESS], self.circular)
        reduce = torch.sum if self.total else torch.mean
        steps = [reduce(d.abs() if self.power == 1 else d.square()) for d in (across, down) if d.numel()]
        return self.weight * self.scale * sum(steps, view.unknowns[GUESS].new_zeros(()))


def with_tv_weight(priors: tuple[Prior, ...], weight: Tensor) -> tuple[Prior, ...]:
    """Return the priors with another weight of total variation, one value per trial."""
    return tuple(replace(prior, weight=weight) if isinstance(prior, TotalVariation) else prior for prior in priors)


@dataclass(frozen=True, slots=True)
class OpponentVariation:
    """`weight * mean sqrt(dx^2 + dy^2)` over the channels and, for colour images, their differences R-G, R-B, G-B.

    breaching's total variation with double opponents; it pads the borders with zeros, we leave their outward differences out.
    """

    weight: float | Tensor = 0.1

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        x = view.unknowns[GUESS]
        if x.shape[-3] == 3:
            red, green, blue = x.unbind(-3)
            x = torch.cat([x, torch.stack([red - green, red - blue, green - blue], dim=-3)], dim=-3)
        across, down = _differences(x, circular=False)
        squares = (
            torch.nn.functional.pad(across, (0, 1)).square() + torch.nn.functional.pad(down, (0, 0, 0, 1)).square()
        )
        return self.weight * (squares + SMOOTH).sqrt().mean()


@dataclass(frozen=True, slots=True)
class Langevin:
    """0, with noise as its gradient: `weight * schedule(iteration) * N(0, 1)`, drawn from the trial's key (GradInversion).

    The noise joins the gradient, as in breaching; in the paper it joins the step.
    """

    weight: float | Tensor = 1e-3
    schedule: Callable[[Tensor], Tensor] | None = None

    def __call__(self, view: View) -> Tensor:
        """Return 0."""
        x, clock = view.unknowns[GUESS], view.clock
        noise = random.normal(random.fold(random.fold(clock.key, "langevin"), clock.iteration), x.shape, x.dtype)
        scale = 1.0 if self.schedule is None else self.schedule(clock.iteration).to(x.dtype)
        return self.weight * scale * (noise * (x - x.detach())).sum()


@dataclass(frozen=True, slots=True)
class PositionGradient:
    """`weight * (1 - cos)` of the simulated and the observed gradient of one tensor: a transformer's position embedding.

    `tensor` None is the first tensor of the update whose name holds "position" or "pos_embed".

    APRIL's term (Lu et al. 2022, arXiv:2112.14087). Where only a bare attention reads the embedding's output z, that gradient fixes z by
    linear equations; behind layer norms and skips it remains a term that weighs the positions as much as all other layers together.
    """

    tensor: str | None = None
    weight: float | Tensor = 1.0

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        held = (each for each in view.observed if "position" in each or "pos_embed" in each)
        name = next(held, None) if self.tensor is None else self.tensor
        if name is None:
            raise InputError("PositionGradient needs a position embedding, and the update has none: name its tensor")
        if name not in view.observed:
            raise InputError(f"PositionGradient.tensor must be in the update, got {name!r}")
        return self.weight * cosine({name: view.simulated.update[name]}, {name: view.observed[name]})


@dataclass(frozen=True, slots=True)
class LabelRegulariser:
    """`weight * ||f(x) - y||^2`, line 12 of CPL's Algorithm 1; f(x) are the logits, y the one-hot label."""

    weight: float | Tensor = 0.0

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        return self.weight * (view.simulated.output - view.simulated.targets).square().sum()


@dataclass(frozen=True, slots=True)
class Norm:
    """`weight * mean(x^2)` of the guess in network space."""

    weight: float | Tensor = 1e-6

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        return self.weight * view.unknowns[GUESS].square().mean()


@dataclass(frozen=True, slots=True)
class BoxPenalty:
    """`weight * mean(distance to the valid box ^2)` of the guess; for a hard constraint use a projection."""

    weight: float | Tensor = 1.0

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        x = view.unknowns[GUESS]
        inside = view.knowledge.scaling.clamp(x, len(view.knowledge.input_shape))
        return self.weight * (x - inside).square().mean()


PRIORS = {
    "total_variation": TotalVariation,
    "opponent_variation": OpponentVariation,
    "label_regulariser": LabelRegulariser,
    "norm": Norm,
    "box_penalty": BoxPenalty,
}
