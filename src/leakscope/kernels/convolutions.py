"""Every 2-D convolution inside a context computed in another way: no module is rewritten.

`nn.Conv2d`, `F.conv2d` and `torch.conv2d` are one call, which a torch function mode catches above vmap and grad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Convolving(TorchFunctionMode):
    """Inside this context `torch.conv2d` is the function given, called as conv2d is; everything else is itself."""

    def __init__(self, conv2d: Callable[..., Tensor]) -> None:
        """Take the function that stands in."""
        super().__init__()
        self.conv2d = conv2d

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Route conv2d to the function that stands in, everything else to itself."""
        del types
        return (self.conv2d if func is torch.conv2d else func)(*args, **(kwargs or {}))


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Return a setting of a convolution for both directions.

    >>> pair(2), pair((1, 2))
    ((2, 2), (1, 2))
    """
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))
