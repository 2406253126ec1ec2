"""The gradient of every example of a batch at shared weights, from one ordinary backward pass.

`vmap(grad)` gives the same and is what the rest of the package uses. Where the weights are shared by all examples, a plain batched
pass is faster on a CPU: every layer is computed once for the whole batch, and only the product that makes a weight gradient
is done example by example, as the layer's backward comes by. For an example n with input x_n and output gradient g_n:

    conv2d       dW_n = x_n * g_n (a grouped convolution over the batch),   db_n = sum of g_n over positions
    linear       dW_n = g_n x_n^T,                                          db_n = g_n
    batch norm   dgamma_n = sum of g_n xhat_n,  dbeta_n = sum of g_n        (by running statistics)

Goodfellow 2015, arXiv:1510.01799; Rochette et al. 2019, arXiv:1912.06015. It holds for networks that let no example meet another
and whose parameters enter through these layers alone; where a parameter was not seen, nothing is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakscope.core.model import Model
from leakscope.core.tree import Tree

Take = Callable[[Tensor, Tensor], None]  # a parameter and its gradient for every example


class MixesExamplesError(Exception):
    """A layer lets examples meet, or is used in a form that this module does not know."""


def sample_gradients(model: Model, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> Tree | None:
    """Return the gradient of `loss(logits)` (a sum over examples) by every parameter, for each of N inputs; None if it cannot.

    It cannot where the network draws, normalises by the batch, or has a parameter that enters by another layer.
    """
    if model.draws:
        return None
    names = {id(value): name for name, value in model.parameters.items()}
    found: Tree = {}

    def take(parameter: Tensor, gradient: Tensor) -> None:
        name = names.get(id(parameter))
        if name is None:
            raise MixesExamplesError
        found[name] = found[name] + gradient if name in found else gradient

    key = torch.zeros((), dtype=torch.int64, device=inputs.device)
    anchor = torch.zeros((), device=inputs.device, requires_grad=True)
    try:
        with torch.enable_grad():
            with _Watched(take, anchor):
                output, _ = model.apply(model.parameters, model.buffers, inputs, key)
            loss(output).backward()
    except MixesExamplesError:
        return None
    return {name: found[name] for name in model.parameters} if found.keys() == model.parameters.keys() else None


class _Watched(TorchFunctionMode):
    """Inside this context convolutions, dense layers and batch norms hand their gradients to `take`, example by example."""

    def __init__(self, take: Take, anchor: Tensor) -> None:
        super().__init__()
        self.take, self.anchor = take, anchor

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Route the three layers to the forms below, everything else to itself."""
        del types
        if func is torch.conv2d:
            return _conv(self, *args, **(kwargs or {}))
        if func is F.linear:
            return _linear(self, *args, **(kwargs or {}))
        if func is F.batch_norm:
            return _norm(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _conv(
    watched: _Watched,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if isinstance(padding, str) or groups != 1 or x.ndim != 4:
        raise MixesExamplesError
    told = tuple([int(v), int(v)] if isinstance(v, int) else [int(e) for e in v] for v in (stride, padding, dilation))
    return _Conv.apply(x, weight, bias, watched.anchor, watched.take, told)  # type: ignore[no-untyped-call]


def _linear(watched: _Watched, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if x.ndim != 2:
        raise MixesExamplesError
    return _Linear.apply(x, weight, bias, watched.anchor, watched.take)  # type: ignore[no-untyped-call]


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
) -> Any:
    del momentum
    if training or mean is None or var is None or weight is None or bias is None or x.ndim != 4:
        raise MixesExamplesError
    return _Norm.apply(x, weight, bias, mean, (var + eps).rsqrt(), watched.anchor, watched.take)  # type: ignore[no-untyped-call]


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, take: Take, told: Any
    ) -> Tensor:
        del anchor
        ctx.save_for_backward(x, weight, bias)
        ctx.take, ctx.told = take, told
        return torch.conv2d(x, weight, bias, *told)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        g, many = g.contiguous(), len(x)
        backward = torch.ops.aten.convolution_backward
        if bias is not None:
            ctx.take(bias, g.sum((2, 3)))
        wide = weight.new_empty(many * len(weight), *weight.shape[1:])  # its gradient needs the shape alone
        one, out = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
        made = backward(out, one, wide, None, *ctx.told, False, [0, 0], many, [False, True, False])[1]
        ctx.take(weight, made.reshape(many, *weight.shape))
        if not ctx.needs_input_grad[0]:
            return (None,) * 6
        made = backward(g, x, weight, None, *ctx.told, False, [0, 0], 1, [True, False, False])[0]
        return made, *(None,) * 5


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, take: Take) -> Tensor:
        del anchor
        ctx.save_for_backward(x, weight, bias)
        ctx.take = take
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        ctx.take(weight, g[:, :, None] * x[:, None, :])
        if bias is not None:
            ctx.take(bias, g)
        return g @ weight if ctx.needs_input_grad[0] else None, None, None, None, None


class _Norm(torch.autograd.Function):
    """y = (x - mean) inverse gamma + beta, per channel."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor, anchor: Tensor, take: Take
    ) -> Tensor:
        del anchor
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.take = take
        scale = weight * inverse
        return torch.addcmul((bias - mean * scale)[:, None, None], x, scale[:, None, None])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        total = g.sum((2, 3))
        product = (g * x).sum((2, 3))
        ctx.take(weight, (product - mean * total) * inverse)
        ctx.take(bias, total)
        scaled = g * (weight * inverse)[:, None, None] if ctx.needs_input_grad[0] else None
        return scaled, *(None,) * 6
