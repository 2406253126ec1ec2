"""The gradient of every example of a batch at shared weights, from one ordinary backward pass.

The same as `vmap(grad)`, but faster on a CPU if all examples share the weights: every layer is computed once for the batch, and
only the weight gradients are formed per example, in each layer's backward (`leakscope.kernels.layer_gradients`). Goodfellow 2015,
arXiv:1510.01799; Rochette et al. 2019, arXiv:1912.06015. Valid for networks that do not mix examples and whose parameters enter
through these layers only; otherwise nothing is returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.kernels.convolutions import ConvSettings, read_conv2d
from leakscope.kernels.layer_gradients import Conv, ConvNorm, Linear, Norm, Settings, Take, folded, side

LOOKS = (Tensor.dim, Tensor.size, Tensor.shape.__get__, Tensor.ndim.__get__)  # type: ignore[attr-defined]
MOST_WEIGHTS = 2  # per position of the map: with more, passes of the norm over the map are cheaper than over weights


class MixesExamplesError(Exception):
    """A layer mixes examples, or is used in an unsupported form."""


def read_gradients(
    model: Model, loss: Callable[[Tensor], Tensor], inputs: Tensor, read: Callable[[str, Tensor], None]
) -> bool:
    """Call `read` with every parameter's name and gradients (N x its shape), one parameter at a time; return False if not supported."""
    if model.draws:
        return False
    uses: Counter[str] = Counter()
    names = {id(value): name for name, value in model.parameters.items()}
    parts: Tree = {}

    def take(parameter: Tensor, gradient: Tensor) -> None:
        name = names[id(parameter)]
        uses[name] -= 1
        whole = parts.pop(name) + gradient if name in parts else gradient
        if uses[name]:
            parts[name] = whole
        else:
            read(name, whole)

    with torch.enable_grad():
        output = _output(model, inputs, uses, take)
        if output is None:
            return False
        loss(output).backward()
    return not uses.total()


def input_gradients(model: Model, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor | None:
    """Return the gradient of `loss(logits)` (a sum over examples) by every input, as one batch; None if not supported."""
    if model.draws:
        return None
    x = inputs.detach().requires_grad_(True)
    with torch.enable_grad():
        output = _output(model, x, Counter(), None)
        return None if output is None else torch.autograd.grad(loss(output), x)[0]


def _output(model: Model, inputs: Tensor, uses: Counter[str], take: Take | None) -> Tensor | None:
    """Return the logits of a watched pass and count the uses of each parameter; None if examples could mix."""
    names = {id(value): name for name, value in model.parameters.items()}

    def use(parameter: Tensor) -> None:
        if id(parameter) not in names:
            raise MixesExamplesError
        uses[names[id(parameter)]] += 1

    key = torch.zeros((), dtype=torch.int64, device=inputs.device)
    watched = _Watched(use, take, torch.zeros((), device=inputs.device, requires_grad=True))
    try:
        with watched:
            output, _ = model.apply(model.parameters, model.buffers, inputs, key)
        logits = watched.computed(output)
    except MixesExamplesError:
        return None
    return logits if uses.keys() == model.parameters.keys() else None


@dataclass(slots=True, eq=False)
class _Waiting:
    """A convolution postponed because a batch norm may follow; `place` is an empty tensor of its shape."""

    place: Tensor
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    settings: Settings
    output: Tensor | None = None


class _Watched(TorchFunctionMode):
    """Inside, convolutions, dense layers and batch norms pass per-example gradients to `take`; without it only norms are folded."""

    def __init__(self, use: Callable[[Tensor], None], take: Take | None, anchor: Tensor) -> None:
        super().__init__()
        self.use, self.take, self.anchor = use, take, anchor
        self.waiting: dict[int, _Waiting] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Route the three layers to the functions below, everything else to torch."""
        del types
        if func in LOOKS:
            return func(*args, **(kwargs or {}))
        if func is F.batch_norm:
            return _norm(self, *args, **(kwargs or {}))
        args, named = tree_map_only(Tensor, self.computed, (args, dict(kwargs or {})))
        if func is torch.conv2d:
            called = read_conv2d(*args, **named)
            if called is None or called[3].groups != 1:
                raise MixesExamplesError
            return _conv(self, *called)
        if func is F.linear:
            return _linear(self, *args, **named)
        return func(*args, **named)

    def computed(self, x: Tensor) -> Tensor:
        """Return a tensor, computed now if it is a postponed convolution."""
        one = self.waiting.get(id(x))
        if one is None:
            return x
        if one.output is None:
            self.uses(one.weight, one.bias)
            if self.take is None:
                one.output = torch.conv2d(one.x, one.weight, one.bias, *one.settings)
            else:
                one.output = Conv.apply(one.x, one.weight, one.bias, self.anchor, self.take, one.settings)  # type: ignore[no-untyped-call]
        return one.output

    def uses(self, *parameters: Tensor | None) -> None:
        """Note that these parameters will have gradients."""
        for each in parameters:
            if each is not None:
                self.use(each)


def _conv(watched: _Watched, x: Tensor, weight: Tensor, bias: Tensor | None, called: ConvSettings) -> Tensor:
    settings = list(called.stride), list(called.padding), list(called.dilation)
    sides = (side(x.shape[2 + i], weight.shape[2 + i], *(each[i] for each in settings)) for i in range(2))
    place = x.new_empty(len(x), len(weight), *sides, device="meta")
    watched.waiting[id(place)] = _Waiting(place, x, weight, bias, settings)
    return place


def _linear(watched: _Watched, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if x.ndim != 2:
        raise MixesExamplesError
    watched.uses(weight, bias)
    if watched.take is None:
        return F.linear(x, weight, bias)
    return cast(Tensor, Linear.apply(x, weight, bias, watched.anchor, watched.take))  # type: ignore[no-untyped-call]


def _norm(
    watched: _Watched,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    del momentum
    if training or mean is None or var is None or weight is None or bias is None or x.ndim != 4:
        raise MixesExamplesError
    watched.uses(weight, bias)
    norm = (weight, bias, mean, (var + eps).rsqrt())
    one = watched.waiting.get(id(x))
    alone = one is None or one.output is not None
    if watched.take is None:
        if one is None or alone:
            return F.batch_norm(watched.computed(x), mean, var, weight, bias, eps=eps)
        watched.uses(one.weight, one.bias)
        return torch.conv2d(one.x, *folded(one.weight, one.bias, norm), *one.settings)
    if one is None or alone or one.weight[0].numel() > MOST_WEIGHTS * x[0, 0].numel():
        return cast(Tensor, Norm.apply(watched.computed(x), norm, watched.anchor, watched.take))  # type: ignore[no-untyped-call]
    watched.uses(one.weight, one.bias)
    return cast(Tensor, ConvNorm.apply(one.x, (one.weight, one.bias, one.settings), norm, watched.anchor, watched.take))  # type: ignore[no-untyped-call]
