"""A network as a pure function of its parameters, and the properties of its architecture that attacks use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree

Apply = Callable[[Tree, Tree, Tensor, Tensor], tuple[Tensor, Tree]]
Mode = Literal["train", "eval"]  # of batch norm: by the batch's statistics, or by the running ones
MODES: tuple[Mode, ...] = ("train", "eval")


@dataclass(frozen=True, slots=True)
class Dense:
    """Names of a dense layer's parameters, and whether its input is non-negative."""

    weight: str
    bias: str | None
    nonnegative: bool = False

    @property
    def layer(self) -> str:
        """Return the name of the layer; "" if it is the whole network."""
        return self.weight.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Norm:
    """A batch norm with running statistics: its layer, its momentum (None: the mean of all batches), values per example and channel."""

    layer: str
    momentum: float | None
    positions: int

    def buffer(self, kind: str) -> str:
        """Return the name of one of its buffers, such as `running_mean`."""
        return f"{self.layer}.{kind}" if self.layer else kind


@runtime_checkable
class HasNorms(Protocol):
    """An `apply` whose batch norms can be put in another mode."""

    def in_mode(self, mode: Mode) -> Apply:
        """Return the function with its batch norms in a mode; itself if they are."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    """`apply(parameters, buffers, x, key) -> (output, buffers)` for ONE trial, and the network's initial values.

    `x` holds N inputs, `output` N rows of logits (N x ... under a caller's own loss). `key`, an int64 scalar for
    `leakscope.core.random`, seeds the network's draws (dropout masks); `draws` is False if `apply` never reads it. `private` names
    parameters that never leave the client. `head` is the last dense layer if it computes the output directly; `entry` is the
    dense layer on the flattened input, the widest of several. `dense` are all trained dense layers with a bias that run once on N rows.
    `narrowest` is the number of values per input in the narrowest layer whose function rounds, such as a sigmoid. `norms` are the
    batch norms with running statistics that run once per call.
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
    norms: tuple[Norm, ...] = ()
    dense: tuple[Dense, ...] = ()

    __repr__ = short_repr

    def shared(self, parameters: Tree) -> Tree:
        """Return the part of a parameter tree that the client sends."""
        return {name: value for name, value in parameters.items() if name not in self.private}

    def with_parameters(self, parameters: Tree) -> Model:
        """Return the network with other parameter values."""
        return replace(self, parameters=parameters)

    def in_mode(self, mode: Mode | None) -> Model:
        """Return the network with its batch norms in a mode; itself if they are, or for None."""
        if mode is None:
            return self
        layers: object = self.apply
        if not isinstance(layers, HasNorms):
            raise InputError(f"batch norm of {self.name} cannot change its mode: use a Model straight from from_module")
        apply = layers.in_mode(mode)
        return self if apply is self.apply else replace(self, apply=apply)


def check_weights(model: Model, weights: Tree, trials: int) -> None:
    """Raise if weights are not one finite set for each of T trials of this network."""
    for name, value in model.parameters.items():
        if name not in weights or tuple(weights[name].shape) != (trials, *value.shape):
            got = tuple(weights[name].shape) if name in weights else "nothing"
            raise InputError(
                f"weights[{name!r}] of {model.name!r} must be {(trials, *value.shape)} (one set per trial), got {got}"
            )
        if not bool(torch.isfinite(weights[name]).all()):
            raise InputError(f"weights[{name!r}] holds NaN or infinity")
