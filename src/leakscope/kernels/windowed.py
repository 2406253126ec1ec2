"""Convolutions of many clients as products over windows (see `windows` and `products`): no module is rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leakscope.kernels.bands import Sizes
from leakscope.kernels.convolutions import Convolving
from leakscope.kernels.products import WAYS, Dims, Way, all_leading, cotangents, keep, sizes_of
from leakscope.kernels.windows import by_input, by_weight, convolve

WAYS["windows"] = Way(by_input, lambda cotangent, x, _, sizes: by_weight(cotangent, x, sizes))


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
        keep(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        return cotangents(ctx, cotangent, "windows")

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, int]:
        leading = all_leading(dims, info.batch_size, x, weight, bias)
        return torch.ops.leakscope.windows(*leading, sizes.numbers()), 0


def _all_clients(x: Tensor, weight: Tensor, bias: Tensor | None, numbers: Sequence[int]) -> Tensor:
    with torch._C.DisableTorchFunction():  # hundreds of small operations need not pass through the mode
        return convolve(x, weight, bias, Sizes.of(numbers))


# a traced graph holds one operator in the place of a loop over clients
_LIBRARY = torch.library.Library("leakscope", "FRAGMENT")
_LIBRARY.define("windows(Tensor x, Tensor weight, Tensor? bias, int[] sizes) -> Tensor")
_LIBRARY.impl("windows", _all_clients, "CompositeExplicitAutograd")
