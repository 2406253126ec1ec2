"""A network as a pure function of its parameters, and the properties of its architecture that attacks use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree

Apply = Callable[[Tree, Tree, Tensor, Tensor], tuple[Tensor, Tree]]


@dataclass(frozen=True, slots=True)
class Dense:
    """Names of a dense layer's parameters, and whether its input is non-negative."""

    weight: str
    bias: str | None
    nonnegative: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """`apply(parameters, buffers, x, key) -> (output, buffers)` for ONE trial, and the network's initial values.

    `x` holds N inputs, `output` N rows of logits (N x ... under a caller's own loss). `key`, an int64 scalar for
    `leakscope.core.random`, seeds the network's draws (dropout masks); `draws` is False if `apply` never reads it. `private` names
    parameters that never leave the client. `head` is the last dense layer if it computes the output directly; `entry` is the
    first layer if it is dense on the flattened input.
    `narrowest` is the number of values per input in the narrowest layer whose function rounds, such as a sigmoid.
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

    __repr__ = short_repr

    def shared(self, parameters: Tree) -> Tree:
        """Return the part of a parameter tree that the client sends."""
        return {name: value for name, value in parameters.items() if name not in self.private}

    def with_parameters(self, parameters: Tree) -> Model:
        """Return the network with other parameter values."""
        return replace(self, parameters=parameters)
