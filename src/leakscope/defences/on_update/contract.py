"""What a defence on the update is: a function of ONE trial's update and a key; one that remembers also takes a state."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from leakscope.core.tree import Tree


@runtime_checkable
class UpdateDefence(Protocol):
    """Changes the update of one trial before it is shared."""

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the protected update; everything random comes from the key."""
        ...


@runtime_checkable
class RememberingDefence(Protocol):
    """Changes the update of one trial and keeps something for its next round."""

    def begin(self, update: Tree) -> Tree:
        """Return the state before the first round; `update` shows names and shapes."""
        ...

    def protect_and_remember(self, update: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Return the protected update and the state of the next round."""
        ...


Defence = UpdateDefence | RememberingDefence
