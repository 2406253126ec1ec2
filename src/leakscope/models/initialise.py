"""Initial weights of many trials; each parameter folds its name into the trial's key, so weights depend on the key alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.random import fold, normal, uniform
from leakscope.core.tree import Tree
from leakscope.models.adapter import Functional
from leakscope.models.checkpoint import Checkpoint, copy_parameters

_CUT_DEVIATION = 0.8796256610342398  # of a standard normal truncated at 2
_AT_ONCE = 2**22  # numbers drawn at once: limits memory, without effect on the result


@dataclass(frozen=True, slots=True)
class Bound:
    """The range [low, high) of a parameter's draw; a constant if both are equal."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Uniform:
    """Draw every weight and bias from U(-a, a), as DLG and CPL do with a = 0.5."""

    a: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.a < math.inf:
            raise InputError(f"Uniform.a must be in (0, inf), got {self.a}")

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one set of parameters per key."""
        bound = Bound(-self.a, self.a)
        return {name: _draw(name, value, bound, keys) for name, value in model.parameters.items()}


@dataclass(frozen=True, slots=True)
class Torch:
    """Draw each layer from the distribution its constructor uses: see `torch_bounds`."""

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one set of parameters per key."""
        bounds = torch_bounds(_module_of(model))
        return {name: _draw(name, value, bounds[name], keys) for name, value in model.parameters.items()}


@dataclass(frozen=True, slots=True)
class Kaiming:
    """Draw weights of dense layers and convolutions from He's U(-b, b), b = sqrt(6 / fan_in); the rest as `Torch` does.

    He et al. 2015, arXiv:1502.01852, for ReLU: `torch.nn.init.kaiming_uniform_` at its defaults.
    """

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one set of parameters per key."""
        drawn = Torch().draw(model, keys)
        for prefix, layer in _module_of(model).named_modules():
            if isinstance(layer, _FAN_IN):
                name = f"{prefix}.weight" if prefix else "weight"
                if name in drawn:  # not frozen
                    drawn[name] = drawn[name] * math.sqrt(6)  # Torch draws from 1 / sqrt(fan_in)
        return drawn


@dataclass(frozen=True, slots=True)
class Lecun:
    """Draw weights of dense layers and convolutions from a normal of variance 1 / fan_in, biases 0; the rest as `Torch` does.

    The normal is truncated at two deviations and rescaled to that variance, as JAX's `lecun_normal`, which initialises DLFA's
    networks (arXiv:2206.12395). With `Torch`'s u from U(-1, 1): `sqrt 2 erfinv(erf(sqrt 2) u)`.
    """

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one set of parameters per key."""
        drawn = Torch().draw(model, keys)
        for prefix, layer in _module_of(model).named_modules():
            if not isinstance(layer, _FAN_IN):
                continue
            weight, bias = (f"{prefix}.{name}" if prefix else name for name in ("weight", "bias"))
            if weight in drawn:  # not frozen
                root = math.sqrt(layer.weight[0].numel())
                cut = math.sqrt(2) * torch.erfinv(math.erf(math.sqrt(2)) * drawn[weight] * root)
                drawn[weight] = cut / (_CUT_DEVIATION * root)
            if bias in drawn:
                drawn[bias] = torch.zeros_like(drawn[bias])
        return drawn


@dataclass(frozen=True, slots=True)
class Transformer:
    """Draw weights of dense layers and embeddings from N(0, deviation^2), biases 0; the rest as `Torch` does.

    Radford et al. 2019 (GPT-2) and Devlin et al. 2019, arXiv:1810.04805 (BERT), with a deviation of 0.02.
    """

    deviation: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.deviation < math.inf:
            raise InputError(f"Transformer.deviation must be in (0, inf), got {self.deviation}")

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one set of parameters per key."""
        drawn = {}
        for prefix, layer in _module_of(model).named_modules():
            for name, value in layer.named_parameters(recurse=False):
                path = f"{prefix}.{name}" if prefix else name
                if path not in model.parameters:  # frozen
                    continue
                if not isinstance(layer, (*_FAN_IN, nn.Embedding)):
                    drawn[path] = _draw(path, value, _known_bound(layer, name, value, path), keys)
                elif name == "weight":
                    drawn[path] = self.deviation * normal(fold(keys, path), value.shape, value.dtype)
                else:
                    drawn[path] = torch.zeros((len(keys), *value.shape), dtype=value.dtype, device=keys.device)
        return drawn


@dataclass(frozen=True, slots=True)
class Given:
    """Keep the model's values, the same for every trial."""

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one copy of the parameters per key."""
        return copy_parameters(model, keys)


Init: TypeAlias = Uniform | Torch | Kaiming | Lecun | Transformer | Given | Checkpoint

INITS: dict[str, Callable[..., Init]] = {
    "uniform": Uniform,
    "pytorch": Torch,
    "kaiming": Kaiming,
    "lecun": Lecun,
    "transformer": Transformer,
    "given": Given,
    "checkpoint": Checkpoint,
}


def draw_parameters(model: Model, scheme: Init, keys: Tensor) -> Tree:
    """Return the initial parameters of T trials, with leading dimension T, on the device of the T keys."""
    if keys.ndim != 1 or keys.dtype != torch.int64:
        raise InputError(f"keys must be a vector of int64, one key per trial, got {tuple(keys.shape)} of {keys.dtype}")
    return scheme.draw(model, keys)


def _module_of(model: Model) -> nn.Module:
    """Return the module of a network, whose layers are needed."""
    if not isinstance(model.apply, Functional):
        raise InputError(f"scheme 'pytorch' needs the layers of {model.name}: use a Model straight from from_module")
    return model.apply.module


def _draw(name: str, like: Tensor, bound: Bound, keys: Tensor) -> Tensor:
    """Return low + (high - low) u for u from U[0, 1), one tensor shaped like `like` per key."""
    if bound.low == bound.high:
        return torch.full((len(keys), *like.shape), bound.low, dtype=like.dtype, device=keys.device)
    chunks = torch.split(fold(keys, name), max(1, _AT_ONCE // max(1, like.numel())))
    drawn = torch.cat([uniform(chunk, like.shape, like.dtype) for chunk in chunks])
    return bound.low + (bound.high - bound.low) * drawn


_FAN_IN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
)  # fmt: skip


def torch_bounds(module: nn.Module) -> dict[str, Bound]:
    """Return the range that PyTorch's constructors draw each parameter from.

    - dense layers and convolutions: weight and bias from U(-b, b), b = 1 / sqrt(fan_in). (PyTorch writes the weight's range as
      Kaiming's with a = sqrt(5): sqrt(6 / ((1 + 5) fan_in)), which is the same.)
    - norm layers: weight 1, bias 0
    - recurrent layers: all from U(-b, b), b = 1 / sqrt(hidden size)
    - attention: input projections from Glorot's sqrt(6 / (fan_in + fan_out)), all biases 0

    >>> torch_bounds(nn.Linear(4, 3))
    {'weight': Bound(low=-0.5, high=0.5), 'bias': Bound(low=-0.5, high=0.5)}
    """
    bounds: dict[str, Bound] = {}
    for prefix, layer in module.named_modules():
        for name, value in layer.named_parameters(recurse=False):
            path = f"{prefix}.{name}" if prefix else name
            bounds[path] = _known_bound(layer, name, value, path)
    return bounds


def _known_bound(layer: nn.Module, name: str, value: Tensor, path: str) -> Bound:
    bound = _bound(layer, name, value)
    if bound is None:
        kind = type(layer).__name__
        raise InputError(f"scheme 'pytorch' does not know how {kind} draws {path!r}; use 'given' or 'uniform'")
    return bound


def _bound(layer: nn.Module, name: str, value: Tensor) -> Bound | None:
    """Return the range of one parameter of one layer, or None if unknown."""
    if isinstance(layer, _FAN_IN) and name in ("weight", "bias"):
        if name == "bias" and isinstance(layer, NonDynamicallyQuantizableLinear):  # the output layer of attention
            return Bound(0.0, 0.0)
        return _around_zero(1 / math.sqrt(layer.weight[0].numel()))
    if isinstance(layer, _NORMS) and name in ("weight", "bias"):
        return Bound(1.0, 1.0) if name == "weight" else Bound(0.0, 0.0)
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return _around_zero(1 / math.sqrt(layer.hidden_size))
    if isinstance(layer, nn.MultiheadAttention) and name.endswith("proj_weight"):
        return _around_zero(math.sqrt(6 / sum(value.shape)))
    if isinstance(layer, nn.MultiheadAttention) and name == "in_proj_bias":
        return Bound(0.0, 0.0)
    if isinstance(layer, nn.PReLU):
        return Bound(layer.init, layer.init)
    drawn_from = getattr(layer, "drawn_from", None)  # set by our own layers
    return Bound(*drawn_from) if isinstance(drawn_from, tuple) else None


def _around_zero(b: float) -> Bound:
    return Bound(-b, b)
