"""What a defence on the update is, and what it may say of itself.

It protects the update of ONE trial (`UpdateDefence`); one that remembers also takes a state (`RememberingDefence`). The rest is optional,
for a defence of leakscope and for one in a file of your own alike:

| name | says | left out |
|---|---|---|
| `reveal(sent) -> Revealed` | what an attacker who knows the defence is told | nothing: no attacker knows it |
| `leaves: frozenset[Effect]` | what an update is after it | nothing that another defence would undo |
| `not_after: Mapping[Effect, str]` | after which effects it makes no sense, and what to do instead | it may follow any |
| `once: bool` | it may stand in a stack only once | it may be repeated |
| a field with `metadata=tried(...)` | at which strengths an audit tries it (`strengths`) | it is tried with its defaults |
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from leakscope.core.tree import Tree


@runtime_checkable
class UpdateDefence(Protocol):
    """Changes the update of one trial before it is shared."""

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the protected update; everything random comes from the key."""


@runtime_checkable
class RememberingDefence(Protocol):
    """Changes the update of one trial and stores something for its next round."""

    def begin(self, update: Tree) -> Tree:
        """Return the state before the first round; `update` shows names and shapes."""

    def protect_and_remember(self, update: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Return the protected update and the state of the next round."""


Defence = UpdateDefence | RememberingDefence


@dataclass(frozen=True, slots=True)
class Revealed:
    """The facts about one defence that an attacker who knows it is told; see the fields of `Knowledge`. Never a draw.

    `mask` is 1 where a coordinate was sent, `largest` says that these were the largest (`largest_each`: of every tensor by itself),
    `bound` is the norm it clips to (`bound_each`: of every tensor), `bits` those of a rounded coordinate (1: signs), `sigma` the standard
    deviation of its noise (`sigma_each`: in units of the root mean square of every tensor). A strength may be one number for each trial.
    """

    mask: Tree | None = None
    largest: bool = False
    largest_each: bool = False
    bound: float | Tensor | None = None
    bound_each: bool = False
    bits: int | None = None
    sigma: float | Tensor | None = None
    sigma_each: bool = False


@runtime_checkable
class Reveals(Protocol):
    """A defence of which an attacker can be told something."""

    def reveal(self, sent: Tree) -> Revealed:
        """Return the facts; `sent` is what the server sees, with the trials in front of every tensor."""


class Effect(enum.Enum):
    """What an update is after a defence, as far as another defence would undo it or have no use for it."""

    SPARSE = "coordinates were left out"
    LARGEST = "the largest coordinates were chosen"
    CLIPPED = "its norm is bounded"
    ROUNDED = "its coordinates were rounded"
    SIGNS = "its coordinates are signs"


NOT_AFTER_SIGNS = {Effect.SIGNS: "signs are already bounded and rounded; leave one of them out"}


def effects_of(defence: object) -> frozenset[Effect]:
    """Return what an update is after a defence; nothing where the defence does not say."""
    effects: frozenset[Effect] = getattr(defence, "leaves", frozenset())
    return effects


def misplaced_after(defence: object) -> Mapping[Effect, str]:
    """Return after which effects a defence makes no sense, and why; none where it does not say."""
    effects: Mapping[Effect, str] = getattr(defence, "not_after", {})
    return effects


def nonzero(sent: Tree) -> Tree:
    """Return 1 where a coordinate was sent: the others are exactly 0."""
    return {name: (value != 0).to(value.dtype) for name, value in sent.items()}
