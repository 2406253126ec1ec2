"""A network as a pure function of its parameters, and what an attacker may read off its architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from leakscope.core.tree import Tree

Apply = Callable[[Tree, Tree, Tensor, Tensor], tuple[Tensor, Tree]]


@dataclass(frozen=True, slots=True)
class Dense:
    """Names of a dense layer's parameters, and whether what enters it can be negative."""

    weight: str
    bias: str | None
    nonnegative: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """`apply(parameters, buffers, x, key) -> (output, buffers)` for ONE trial, and the values it was made with.

    `x` holds N inputs, `output` N rows of logits. `key` seeds whatever the network draws (dropout masks): one int64
    scalar, read by `leakscope.core.random`. `private` names parameters that never leave the client. `head` is the last
    dense layer if the output comes straight from it; `entry` is the first layer if it is dense on the flattened input.
    `draws` is False where `apply` never reads its key. `narrowest` is how many numbers an input has in the narrowest layer whose
    function rounds, such as a sigmoid; None if there is none.
    """

    name: str
    apply: Apply
    parameters: Tree
    buffers: Tree
    input_shape: tuple[int, ...]
    classes: int
    head: Dense | None = None
    entry: Dense | None = None
    private: frozenset[str] = field(default_factory=frozenset)
    draws: bool = True
    narrowest: int | None = None

    def shared(self, parameters: Tree) -> Tree:
        """Return the part of a parameter tree that the client sends."""
        return {name: value for name, value in parameters.items() if name not in self.private}

    def with_parameters(self, parameters: Tree) -> Model:
        """Return the same network holding other values."""
        return replace(self, parameters=parameters)
