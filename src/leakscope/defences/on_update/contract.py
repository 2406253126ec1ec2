"""The interface of a defence on the update.

A defence protects the update of ONE trial (`UpdateDefence`); one with memory also takes a state (`RememberingDefence`). The rest
is optional, for built-in and user-defined defences alike:

| name | meaning | if absent |
|---|---|---|
| `reveal(sent) -> Revealed` | what an informed attacker knows of the defence | nothing: no attacker knows it |
| `leaves: frozenset[Effect]` | properties of an update after the defence | none that another defence would undo |
| `not_after: Mapping[Effect, str]` | effects it must not follow, and what to do instead | it may follow any |
| `once: bool` | it may occur only once in a stack | it may be repeated |
| a field with `metadata=tried(...)` | strengths at which an audit tries it (`strengths`) | it is tried with its defaults |
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree


@runtime_checkable
class UpdateDefence(Protocol):
    """Changes the update of one trial before it is shared."""

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the protected update; all randomness comes from the key."""


@runtime_checkable
class RememberingDefence(Protocol):
    """Changes the update of one trial and stores a state for the next round."""

    def begin(self, update: Tree) -> Tree:
        """Return the state before the first round; `update` gives names and shapes."""

    def protect_and_remember(self, update: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Return the protected update and the state for the next round."""


Defence = UpdateDefence | RememberingDefence


@dataclass(frozen=True, slots=True)
class Revealed:
    """What an informed attacker knows of one defence (see the fields of `Knowledge`), never a random draw.

    `mask` is 1 where a coordinate was sent, `largest` says that these were the largest (`largest_each`: within each tensor),
    `bound` is the clipping norm (`bound_each`: of each tensor), `bits` those of a rounded coordinate (1: signs), `sigma` the
    standard deviation of the noise (`sigma_each`: in units of each tensor's root mean square). A strength may be one number for
    each trial.
    """

    mask: Tree | None = None
    largest: bool = False
    largest_each: bool = False
    bound: float | Tensor | None = None
    bound_each: bool = False
    bits: int | None = None
    sigma: float | Tensor | None = None
    sigma_each: bool = False

    __repr__ = short_repr


@runtime_checkable
class Reveals(Protocol):
    """A defence that an attacker can know something about."""

    def reveal(self, sent: Tree) -> Revealed:
        """Return what an informed attacker knows; `sent` is what the server sees, with a leading trial dimension in every tensor."""


class Effect(enum.Enum):
    """A property of an update after a defence that another defence could undo or that would make it useless."""

    SPARSE = "coordinates were left out"
    LARGEST = "the largest coordinates were chosen"
    CLIPPED = "its norm is bounded"
    ROUNDED = "its coordinates were rounded"
    SIGNS = "its coordinates are signs"


NOT_AFTER_SIGNS = {Effect.SIGNS: "signs are already bounded and rounded; leave one of them out"}


def effects_of(defence: object) -> frozenset[Effect]:
    """Return the effects that a defence leaves; none if it declares none."""
    effects: frozenset[Effect] = getattr(defence, "leaves", frozenset())
    return effects


def misplaced_after(defence: object) -> Mapping[Effect, str]:
    """Return the effects a defence must not follow, with the reason; none if it declares none."""
    effects: Mapping[Effect, str] = getattr(defence, "not_after", {})
    return effects


def nonzero(sent: Tree) -> Tree:
    """Return 1 where a coordinate was sent; coordinates that were not sent are exactly 0."""
    return {name: (value != 0).to(value.dtype) for name, value in sent.items()}
