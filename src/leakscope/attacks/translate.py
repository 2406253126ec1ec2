"""The enhanced attack on transformed images: it learns a translation (or affine map) of each image with the guess.

The guess goes through the map before the network sees it, so the black border of a translation need not be found pixel by pixel
("[Re] Privacy-preserving collaborative learning with automatic transformation search", section 3.1 and figure 1, after Jaderberg
et al. 2015). The attack knows bounds on the translation, not the policy. `Reconstruction.inputs` is the guess before the map,
`Reconstruction.seen` after it, which the paper compares with T(x).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor

from leakscope.attacks.attack import SEEN, Extra, Matching
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.priors import GUESS
from leakscope.attacks.settings import AdamSettings, adam_attack
from leakscope.attacks.simulate import SHIFT, OneGradient
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.signature import settings_of
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Round
from leakscope.learning.warps import bend, shift

AFFINE = "affine"
BOUNDS = {"3-1-7": (1.1, 0.2), "43-18-18": (0.4, 0.4), "3-1-7+43-18-18": (1.1, 0.4)}  # section 3.3; 1 is half the side


def on_black(knowledge: Knowledge, move: Moved, guess: Tensor, by: Tensor) -> Tensor:
    """Return the guess (network space) after a map that fills with black: the map is applied to images in [0, 1]."""
    rank = len(knowledge.input_shape)
    return knowledge.scaling.scale(move(knowledge.scaling.unscale(guess, rank), by), rank)


@dataclass(frozen=True, slots=True)
class Moved:
    """Images after a learned map: `shift` (N x 2: right, down; 1 = half the side) or `affine` (N x 2 x 3)."""

    kind: str = SHIFT

    def __call__(self, pictures: Tensor, by: Tensor) -> Tensor:
        """Return the moved images, filled with black."""
        return shift(pictures, by) if self.kind == SHIFT else bend(pictures, by)


@dataclass(frozen=True, slots=True)
class ThroughMap:
    """The inner simulator on the guess after a learned map; uncovered pixels are black, not 0 in network space."""

    moved: Moved = field(default_factory=Moved)
    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update of the moved guess."""
        guess = on_black(knowledge, self.moved, unknowns[GUESS], unknowns[self.moved.kind])
        return self.inner(model, {**unknowns, GUESS: guess}, seen, knowledge, clock)


@dataclass(frozen=True, slots=True)
class AddSeen:
    """Add the moved guess to the final unknowns of all trials."""

    moved: Moved

    def __call__(self, unknowns: Tree, knowledge: Knowledge) -> Tree:
        """Return the unknowns with the guess as the client's network saw it."""
        flat, by = unknowns[GUESS].flatten(0, 1), unknowns[self.moved.kind].flatten(0, 1)
        return {**unknowns, SEEN: on_black(knowledge, self.moved, flat, by).reshape(unknowns[GUESS].shape)}


@dataclass(frozen=True, slots=True)
class Within:
    """Clamp a shift to |t_x| <= x, |t_y| <= y after every step; a bound may be one number or one for each trial."""

    x: float | Tensor
    y: float | Tensor

    def __post_init__(self) -> None:
        for bound in (self.x, self.y):
            if not bool((torch.as_tensor(bound) > 0).all()):
                raise InputError(f"translation bounds must be positive (1 = half the side), got {self.x} and {self.y}")

    def __call__(self, value: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the shift, T x N x 2, inside its bounds."""
        del knowledge
        each = [torch.as_tensor(bound, dtype=value.dtype, device=value.device) for bound in (self.x, self.y)]
        bound = torch.stack([b.reshape(-1, 1).expand(value.shape[:2]) for b in each], dim=-1)
        return torch.minimum(torch.maximum(value, -bound), bound)


@dataclass(frozen=True, slots=True)
class NearIdentity:
    """Clamp an affine map: its translation to the bounds of `shift`, its other entries to `bend` around the identity."""

    shift: Within
    bend: float

    def __post_init__(self) -> None:
        if not self.bend > 0:
            raise InputError(f"affine bounds must be positive, got {self.bend}")

    def __call__(self, value: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the map inside its bounds."""
        linear, translation = value[..., :2], self.shift(value[..., 2], knowledge)
        still = torch.eye(2, dtype=value.dtype, device=value.device)
        linear = still + (linear - still).clamp(-self.bend, self.bend)
        return torch.cat([linear, translation.unsqueeze(-1)], dim=-1)


def no_shift(key: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the start of a shift, N x 2 zeros."""
    return torch.zeros((knowledge.samples, 2), device=key.device)


def identity(key: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the start of an affine map, N x 2 x 3: the identity."""
    return torch.eye(2, 3, device=key.device).expand(knowledge.samples, 2, 3).clone()


@settings_of(adam_attack, without=("decay", "threshold"))
def ig_shift(
    *, bound_x: float | Tensor = 1.1, bound_y: float | Tensor = 0.4, **settings: Unpack[AdamSettings]
) -> Matching:
    """The enhanced attack: `ig` with a learned translation per image, |t_x| and |t_y| bounded (1 = half the side).

    Bounds of the paper: 1.1 / 0.2 for policy 3-1-7, 0.4 / 0.4 for 43-18-18, 1.1 / 0.4 for their hybrid (the default). The shift
    starts at 0 and uses the same Adam and schedule; its gradient is not signed.
    """
    attack = adam_attack("ig_shift", **settings)
    rule = replace(attack.rules[GUESS], sign=False, project=Within(bound_x, bound_y))
    return _through(attack, SHIFT, rule, no_shift)


@settings_of(adam_attack, without=("decay", "threshold"))
def ig_affine(
    *, bound_x: float | Tensor = 1.1, bound_y: float | Tensor = 0.4, bend: float = 0.3, **settings: Unpack[AdamSettings]
) -> Matching:
    """The enhanced attack with an affine map per image: translation as `ig_shift`, other entries within `bend` of the identity."""
    attack = adam_attack("ig_affine", **settings)
    project = NearIdentity(Within(bound_x, bound_y), bend)
    return _through(attack, AFFINE, replace(attack.rules[GUESS], sign=False, project=project), identity)


def _through(attack: Matching, kind: str, rule: Rule, start: Extra) -> Matching:
    """Return the attack through a learned map, whose unknown of this `kind` has this start and rule."""
    moved = Moved(kind)
    return replace(
        attack,
        simulate=ThroughMap(moved),
        rules={**attack.rules, kind: rule},
        extras={kind: start},
        finish=AddSeen(moved),
    )
