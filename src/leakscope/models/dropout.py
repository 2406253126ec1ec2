"""Dropout whose mask is a pure function of the key of the current call.

`nn.Dropout` draws from torch's global generator, so its mask depends on earlier draws and, under `vmap`, on neighbours. The
adapter opens `drawing_from(key)` for one call; each dropout executed in it folds a running number into the key.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

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
        if not self.training or self.p == 0:
            return x
        running = _RUNNING.get()
        if running is None:
            raise InputError("KeyedDropout in train mode has no key: call the network through from_module(...).apply")
        key, numbers = running
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.whole_channels else x.shape
        keep_mask = uniform(fold(key, f"dropout {next(numbers)}"), shape) >= self.p
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return torch.where(keep_mask, x * scale, torch.zeros_like(x))

    def extra_repr(self) -> str:
        """Return the settings, for printing a network."""
        return f"p={self.p}, whole_channels={self.whole_channels}"


_CHANNEL_KINDS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def replace_dropout(module: nn.Module) -> None:
    """Replace every torch dropout of `module` in train mode by a `KeyedDropout`."""
    replacements: dict[nn.Module, KeyedDropout] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if layer.training and type(layer) in (nn.Dropout, *_CHANNEL_KINDS):
            p = float(layer.p)
            keyed = replacements.setdefault(layer, KeyedDropout(p, whole_channels=isinstance(layer, _CHANNEL_KINDS)))
            module.set_submodule(name, keyed)
