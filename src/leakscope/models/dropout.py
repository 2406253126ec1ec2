"""Dropout whose mask is a pure function of the key of the current call.

`nn.Dropout` draws from torch's global generator, so its mask depends on earlier draws and, under `vmap`, on neighbours. The
adapter opens `drawing_from(key)` for one call; each dropout executed in it folds a running number into the key.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leakscope.core.errors import InputError
from leakscope.core.random import fold, uniform

_RUNNING: ContextVar[tuple[Tensor, Iterator[int]] | None] = ContextVar("key_of_the_running_call", default=None)


@contextmanager
def drawing_from(key: Tensor) -> Iterator[None]:
    """Let every `KeyedDropout` executed inside draw from `key`; other threads are not affected."""
    token = _RUNNING.set((key, itertools.count()))
    try:
        yield
    finally:
        _RUNNING.reset(token)


class KeyedDropout(nn.Module):
    """Zero each entry (channel, with `whole_channels`) with probability `p` and scale the rest by 1 / (1 - p); identity in eval mode."""

    def __init__(self, p: float = 0.5, *, whole_channels: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise InputError(f"KeyedDropout.p must be in [0, 1], got {p!r}")
        self.p = p
        self.whole_channels = whole_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with entries dropped."""
        return _drop(x, self.p, whole_channels=self.whole_channels) if self.training and self.p else x

    def extra_repr(self) -> str:
        """Return the settings, for printing a network."""
        return f"p={self.p}, whole_channels={self.whole_channels}"


def _drop(x: Tensor, p: float, *, whole_channels: bool = False) -> Tensor:
    """Return `x` with entries dropped by the key of the running call."""
    running = _RUNNING.get()
    if running is None:
        raise InputError("KeyedDropout in train mode has no key: call the network through from_module(...).apply")
    key, numbers = running
    shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if whole_channels else x.shape
    keep_mask = uniform(fold(key, f"dropout {next(numbers)}"), shape) >= p
    scale = 1 / (1 - p) if p < 1 else 0.0
    return torch.where(keep_mask, x * scale, torch.zeros_like(x))


class KeyedFunctions(TorchFunctionMode):
    """Lets `torch.nn.functional.dropout` inside draw from the key of the running call, if there is one."""

    def __torch_function__(
        self, func: Callable[..., Tensor], types: object, args: tuple[Tensor, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Tensor:  # fmt: skip
        """Return the function's result."""
        if func is not F.dropout or _RUNNING.get() is None:
            return func(*args, **(kwargs or {}))
        given = inspect.signature(F.dropout).bind(*args, **(kwargs or {}))
        given.apply_defaults()
        x, p, training, _ = given.args
        return _drop(x, p) if training and p else x


_CHANNEL_KINDS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def replace_dropout(module: nn.Module) -> None:
    """Replace every torch dropout of `module` in train mode by a `KeyedDropout`."""
    replacements: dict[nn.Module, KeyedDropout] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if layer.training and type(layer) in (nn.Dropout, *_CHANNEL_KINDS):
            p = float(layer.p)
            keyed = replacements.setdefault(layer, KeyedDropout(p, whole_channels=isinstance(layer, _CHANNEL_KINDS)))
            module.set_submodule(name, keyed)
