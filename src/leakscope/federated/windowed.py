"""Convolutions of many clients as products over windows (see `windows`): no module is rewritten.

Once clients have weights of their own, vmap turns their convolutions into one of many groups, which CPU libraries do at half
the speed and less. A torch function mode catches `nn.Conv2d`, `F.conv2d` and `torch.conv2d` above vmap and grad. First
derivatives only: this is for training, attacks differentiate twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leakscope.core.convolutions import Convolving
from leakscope.federated.banded import Dims, Needs, leading, sizes_of
from leakscope.federated.bands import Sizes
from leakscope.federated.windows import by_input, by_weight, convolve


class Windowed(Convolving):
    """Inside this context every ungrouped 2-D convolution of many clients is computed as products over windows."""

    def __init__(self) -> None:
        """Convolve as below."""
        super().__init__(_conv2d)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    sizes = sizes_of(input, weight, stride, padding, dilation, groups)
    if sizes is None:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    out: Tensor = _Convolution.apply(input, weight, bias, sizes)  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    """`x * w + b`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
        return convolve(x[None], weight[None], None if bias is None else bias[None], sizes)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Sizes], output: Any) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.biased, ctx.sizes = inputs[2] is not None, inputs[3]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
        made = _Backward.apply(cotangent, x, weight, ctx.sizes, needs)  # type: ignore[no-untyped-call]
        return *(value if needed else None for value, needed in zip(made, needs, strict=True)), None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, int]:
        x, weight = (leading(v, d, info.batch_size) for v, d in zip((x, weight), dims, strict=False))
        bias = None if bias is None else leading(bias, dims[2], info.batch_size)
        with torch._C.DisableTorchFunction():  # hundreds of small operations need not pass through the mode
            return convolve(x, weight, bias, sizes), 0


class _Backward(torch.autograd.Function):
    """The cotangents of input, weight and bias; one that nobody needs is a zero."""

    @staticmethod
    def forward(
        cotangent: Tensor, x: Tensor, weight: Tensor, sizes: Sizes, needs: Needs
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_x, to_weight, to_bias = _backward(cotangent[None], x[None], weight[None], sizes, needs)
        return to_x[0], to_weight[0], to_bias[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> None:
        del ctx, cotangents
        raise RuntimeError("windows are for training: they have no second derivative")

    @staticmethod
    def vmap(
        info: Any, dims: Dims, cotangent: Tensor, x: Tensor, weight: Tensor, sizes: Sizes, needs: Needs
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        cotangent, x, weight = (
            leading(v, d, info.batch_size) for v, d in zip((cotangent, x, weight), dims, strict=False)
        )
        return _backward(cotangent, x, weight, sizes, needs), (0, 0, 0)


def _backward(
    cotangent: Tensor, x: Tensor, weight: Tensor, sizes: Sizes, needs: Needs
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = cotangent.new_zeros(len(cotangent))
    with torch._C.DisableTorchFunction():
        return (
            by_input(cotangent, weight, sizes) if needs[0] else nothing,
            by_weight(cotangent, x, sizes) if needs[1] else nothing,
            cotangent.sum((1, 3, 4)) if needs[2] else nothing,
        )
