"""Convolutions as matrix products, swapped in from outside: no module is rewritten.

With weights of its own in every trial a convolution becomes a grouped one, which CPU and GPU libraries do slowly; as
`unfold` and a product it becomes a batched matrix product, which they do well. A torch function mode catches
`nn.Conv2d`, `F.conv2d` and `torch.conv2d` alike, above vmap and grad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return `F.conv2d(...)` computed as `weight @ unfold(x)`; grouped and unbatched convolutions stay native."""
    if groups != 1 or x.ndim != 4 or isinstance(padding, str):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (sy, sx), (py, px), (dy, dx) = _two(stride), _two(padding), _two(dilation)
    kernel = (weight.shape[-2], weight.shape[-1])
    height = (x.shape[-2] + 2 * py - dy * (kernel[0] - 1) - 1) // sy + 1
    width = (x.shape[-1] + 2 * px - dx * (kernel[1] - 1) - 1) // sx + 1
    if kernel == (1, 1) and (py, px) == (0, 0):
        columns = x[..., ::sy, ::sx].flatten(2)
    else:
        columns = F.unfold(x, kernel, dilation=(dy, dx), padding=(py, px), stride=(sy, sx))
    out = weight.flatten(1) @ columns
    if bias is not None:
        out = out + bias[:, None]
    return out.reshape(*out.shape[:-1], height, width)


class Im2col(TorchFunctionMode):
    """Inside this context every ungrouped 2-D convolution is computed as a matrix product."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Route conv2d to the product form, everything else to itself."""
        del types
        if func is torch.conv2d:
            given = dict(kwargs or {})
            if "input" in given:
                args = (given.pop("input"), *args)
            return conv2d(*args, **given)
        return func(*args, **(kwargs or {}))
