"""Shrinking the update to a bounded norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.tree import TINY, Tree, norm, scale
from leakscope.defences.on_update.contract import NOT_AFTER_SIGNS, Effect, Revealed
from leakscope.defences.strengths import Unit, tried


@dataclass(frozen=True, slots=True)
class Clip:
    """Shrink an update until its norm is at most `bound`; keep its direction. With `each`, bound every tensor separately.

    Equation: `g min(1, bound / ||g||)`.
    Reference: Abadi et al. 2016, arXiv:1607.00133, where it bounds the sensitivity that noise must cover.
    Works when: the attacker compares lengths and does not know the defence. The direction is unchanged, so an informed attacker
        loses nothing.
    Costs: shorter steps; a server can compensate with its learning rate.
    """

    bound: float | Tensor = field(default=1.0, metadata=tried(0.5, 0.05, unit=Unit.LENGTH))
    each: bool = False

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.CLIPPED})
    not_after: ClassVar[Mapping[Effect, str]] = NOT_AFTER_SIGNS

    def __post_init__(self) -> None:
        check_fields(self)
        bound = torch.as_tensor(self.bound)
        if not bool(((bound > 0) & bound.isfinite()).all()):
            raise InputError(f"Clip.bound must be in (0, inf), got {self.bound}")

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update times min(1, bound / norm)."""
        del key
        if self.each:
            return {name: scale({name: value}, self._factor({name: value}))[name] for name, value in update.items()}
        return scale(update, self._factor(update))

    def reveal(self, sent: Tree) -> Revealed:
        """Return the bound."""
        del sent
        return Revealed(bound=self.bound, bound_each=self.each)

    def _factor(self, update: Tree) -> Tensor:
        length = norm(update)
        return (self.bound / length.clamp_min(TINY)).clamp_max(1.0).to(length.dtype)
