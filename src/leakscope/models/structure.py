"""Which dense layer computes a network's output, which one reads its input, and what every layer read, found by running one example.

The example runs once with every torch function watched. Two kinds of tensors are marked: those that cannot be negative (outputs
of sigmoid, ReLU, softplus or softmax, also after pooling, reshaping and dropout) and the input itself, reshaped. A mark is void
once the tensor is written to. A dense layer counts only if its weight and bias are used once, so that their gradient belongs to
this layer alone. Anything not proven is answered with no.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leakscope.core.model import Dense, Norm
from leakscope.core.tree import tensors
from leakscope.models.dropout import KeyedDropout

_NONNEGATIVE = frozenset({"relu", "relu_", "sigmoid", "sigmoid_", "softplus", "softmax", "hardsigmoid"})
# functions whose last bit depends on the CPU instructions used
_ROUNDED = frozenset({
    "sigmoid", "sigmoid_", "tanh", "tanh_", "softmax", "log_softmax", "softplus", "gelu", "silu", "elu", "selu", "mish",
    "exp", "erf", "logsigmoid",
})  # fmt: skip
_RESHAPING = frozenset({"flatten", "view", "reshape", "squeeze", "unsqueeze", "contiguous"})
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
_POOLING = frozenset(f"{how}_pool{n}d" for how in ("max", "avg", "adaptive_max", "adaptive_avg") for n in (1, 2, 3))
_PRESERVING = _RESHAPING | _POOLING | {"mean", "permute", "transpose", "clone"}
# functions that may stand between a layer and its activation and leave units apart
_BETWEEN = _RESHAPING | {"dropout", "permute", "transpose"}


class _Marks:
    """Tensors identified by id and version counter."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int]] = {}

    def add(self, tensor: object) -> None:
        if isinstance(tensor, Tensor):
            self._known[id(tensor)] = (tensor, tensor._version)

    def __contains__(self, tensor: object) -> bool:
        if not isinstance(tensor, Tensor) or id(tensor) not in self._known:
            return False
        return self._known[id(tensor)][1] == tensor._version


class _Watch(TorchFunctionMode):
    """Marks the results of torch functions."""

    def __init__(self, x: Tensor, *, shapes_only: bool) -> None:
        super().__init__()
        self._shapes_only = shapes_only
        self.nonnegative, self.inputs = _Marks(), _Marks()
        self.inputs.add(x)
        self.uses: Counter[int] = Counter()
        self.rounded: list[int] = []
        self.outputs: dict[int, tuple[Tensor, set[str]]] = {}  # layers whose output a tensor is, by the tensor's id
        self.readers: dict[str, str] = {}  # torch function that read a layer's output first
        self._examples = len(x)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        first = args[0] if args else None
        was_nonnegative, was_input = first in self.nonnegative, first in self.inputs
        name = getattr(func, "__name__", "")
        result = (
            shaped if (shaped := self._shaped(name, func, args, kwargs)) is not None else func(*args, **(kwargs or {}))
        )
        if isinstance(first, Tensor) and isinstance(result, Tensor) and id(first) in self.outputs:
            by_channel = name == "batch_norm" and (kwargs or {}).get("training") is False
            self._read(name, self.outputs[id(first)][1], result, between=by_channel or name in _BETWEEN)
        if next(tensors(result), None) is not None:  # reading a shape or a dtype is no computation
            self.uses.update(id(tensor) for tensor in tensors((args, kwargs)))
        if name in _ROUNDED and isinstance(result, Tensor):
            self.rounded.append(result.numel() // self._examples)
        if name in _NONNEGATIVE or (was_nonnegative and name in _PRESERVING):
            self.nonnegative.add(result)
        if was_input and name in _RESHAPING:
            self.inputs.add(result)
        return result

    def _shaped(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Tensor | None:
        """Return a tensor of the shape of a convolution's or a token layer's result, from one channel; None for all else."""
        if not self._shapes_only or kwargs or len(args) < 2 or not all(isinstance(each, Tensor) for each in args[:2]):
            return None
        x, weight = args[:2]
        if name in _CONVOLUTIONS and x.ndim == weight.ndim:
            one: Tensor = func(x[:, :1], weight[:1, :1], None, *args[3:6])
            return one.repeat(1, weight.shape[0], *[1] * (x.ndim - 2))
        if name == "linear" and x.ndim > 2 and x.shape[-1] == weight.shape[-1]:
            token: Tensor = x[..., :1]
            return token.repeat(*[1] * (x.ndim - 1), weight.shape[0])
        return None

    def _read(self, function: str, layers: set[str], result: Tensor, *, between: bool) -> None:
        """Note a function that reads the output of layers, or stands between them and their activation."""
        if between:
            self.leaves(result, layers)
        else:
            self.readers = dict.fromkeys(layers, function) | self.readers

    def leaves(self, result: Tensor, layers: set[str]) -> None:
        """Note that a tensor is the output of layers."""
        self.outputs[id(result)] = (result, self.outputs.get(id(result), (result, set()))[1] | layers)


@dataclass(frozen=True, slots=True)
class _Call:
    """One execution of a dense layer: copies of its input and output, and the output tensor itself."""

    layer: str
    entering: Tensor
    leaving: Tensor
    result: Tensor
    writes: int
    from_nonnegative: bool
    from_input: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """One run of a module with parameters, by its name: shapes, the tensor it read, and the torch function that read its output first."""

    name: str
    entering: tuple[int, ...]
    leaving: tuple[int, ...]
    source: int  # equal for layers that read the same tensor
    reads_input: bool  # the network's own, at most reshaped
    reader: str | None = None  # dropout, reshaping and batch norm in eval mode are passed over; None: nothing read it


@dataclass(slots=True)
class _Trace:
    """The executed layers with parameters, in order, what modules read, calls of dense layers, and batch norms with running statistics."""

    layers: list[str] = field(default_factory=list)
    runs: list[tuple[Layer, Tensor]] = field(default_factory=list)  # with the tensor read, so that its id stays its own
    calls: list[_Call] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Structure:
    """The example's output, dense layers at output and input if any, values per example in the narrowest rounding layer, batch norms."""

    output: object
    head: Dense | None
    entry: Dense | None
    narrowest: int | None = None
    layers: tuple[Layer, ...] = ()  # in the order in which they ended, modules that hold layers included
    norms: tuple[Norm, ...] = ()
    dense: tuple[Dense, ...] = ()  # with a bias


def find_structure(
    run: Callable[[Tensor], object],
    module: nn.Module,
    weights: Mapping[str, Tensor],
    x: Tensor,
    *,
    shapes_only: bool = False,
) -> Structure:
    """Return the structure of `module`, which `run(x)` executes with the values `weights`.

    `shapes_only` computes one channel of each convolution and token layer and repeats it: the structure is the same, the output is not.
    """
    trace = _Trace()
    with torch.no_grad(), ExitStack() as hooks, _Watch(x, shapes_only=shapes_only) as watch:
        _register(hooks, module, trace, watch)
        output = run(x)
    usable = [call for call in trace.calls if _is_dense(call, weights) and _is_alone(call, weights, watch.uses)]
    head = next((c for c in usable if c.result is output and c.result._version == c.writes), None)
    readers = [c for c in usable if _reads_input(c, x)]
    entry = max(readers, key=lambda c: (_values(c, weights)[1] is not None, c.leaving.shape[1]), default=None)
    return Structure(
        output,
        None if head is None else _dense(head, weights, head.from_nonnegative),
        None if entry is None else _dense(entry, weights, bool((x >= 0).all())),
        min(watch.rounded, default=None),
        tuple(replace(layer, reader=watch.readers.get(layer.name)) for layer, _ in trace.runs),
        tuple(norm for norm in trace.norms if [each.layer for each in trace.norms].count(norm.layer) == 1),
        tuple(_dense(call, weights, call.from_nonnegative) for call in usable if _values(call, weights)[1] is not None),
    )


def _register(hooks: ExitStack, module: nn.Module, trace: _Trace, watch: _Watch) -> None:
    """Let `trace` and `watch` see the layers of `module` until `hooks` closes."""

    def begin(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, args: tuple[object, ...]) -> None:  # noqa: ARG001  torch gives both
            trace.layers.append(name)

        return note

    def end(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:  # noqa: ARG001  torch gives all
            if args:
                x = args[0]
                seen = (x in watch.nonnegative and bool((x >= 0).all()), x in watch.inputs)
                trace.calls.append(_Call(name, x.clone(), result.clone(), result, result._version, *seen))

        return note

    def ran(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, args: tuple[object, ...], result: object) -> None:  # noqa: ARG001  torch gives all
            if args and isinstance(x := args[0], Tensor) and isinstance(result, Tensor):
                trace.runs.append((Layer(name, tuple(x.shape), tuple(result.shape), id(x), x in watch.inputs), x))
                watch.leaves(result, {name})

        return note

    def normalise(name: str) -> Callable[..., None]:
        def note(layer: nn.modules.batchnorm._BatchNorm, args: tuple[Tensor, ...]) -> None:
            trace.norms.append(
                Norm(name, layer.momentum, math.prod(args[0].shape[2:]))
            )  # reading a tensor would be seen

        return note

    def keep_mark(layer: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:  # noqa: ARG001  torch gives all
        if args and args[0] in watch.nonnegative:
            watch.nonnegative.add(result)

    for name, layer in module.named_modules():
        if next(layer.parameters(recurse=False), None) is not None:
            hooks.enter_context(layer.register_forward_pre_hook(begin(name)))
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            hooks.enter_context(layer.register_forward_pre_hook(normalise(name)))
        if type(layer) is nn.Linear:
            hooks.enter_context(layer.register_forward_hook(end(name)))
        if type(layer) is KeyedDropout:
            hooks.enter_context(layer.register_forward_hook(keep_mark))
        if next(layer.parameters(), None) is not None:  # the last, since the others compute
            hooks.enter_context(layer.register_forward_hook(ran(name)))


def _values(call: _Call, weights: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return the layer's weight and bias; None if it has none under its name."""
    return weights.get(_parameter(call.layer, "weight")), weights.get(_parameter(call.layer, "bias"))


def _is_dense(call: _Call, weights: Mapping[str, Tensor]) -> bool:
    """Return whether the layer computed a dense layer's function: a user's hook may have changed it."""
    weight, bias = _values(call, weights)
    if weight is None or call.leaving.ndim != 2:
        return False
    return torch.equal(call.leaving, F.linear(call.entering, weight, bias))


def _is_alone(call: _Call, weights: Mapping[str, Tensor], uses: Counter[int]) -> bool:
    """Return whether this call is the only use of the layer's weight and bias."""
    return all(value is None or uses[id(value)] == 1 for value in _values(call, weights))


def _reads_input(call: _Call, x: Tensor) -> bool:
    return call.from_input and torch.equal(call.entering, x.flatten(1))


def _dense(call: _Call, weights: Mapping[str, Tensor], nonnegative: bool) -> Dense:
    bias = _parameter(call.layer, "bias")
    return Dense(_parameter(call.layer, "weight"), bias if bias in weights else None, nonnegative)


def _parameter(layer: str, name: str) -> str:
    """Return a parameter's name in the network; the network may be the layer itself."""
    return f"{layer}.{name}" if layer else name
