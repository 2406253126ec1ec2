"""Which examples of the current call are real.

Smaller clients are padded so that many clients fit into one batch. Layers that look across the batch (batch norm in train mode)
must not count the padding; `counting(mask)` provides the mask for one call of the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_RUNNING: ContextVar[Tensor | None] = ContextVar("real_examples_of_the_running_call", default=None)


@contextmanager
def counting(mask: Tensor) -> Iterator[None]:
    """Let layers inside count only the examples whose mask is set; other threads are not affected."""
    token = _RUNNING.set(mask)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def real_examples() -> Tensor | None:
    """Return the mask of the current call, None if all examples count."""
    return _RUNNING.get()


def channel_statistics(x: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of each channel of N x C x ... over the real examples, and the number of values."""
    weight = present.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    across = [0, *range(2, x.ndim)]
    count = weight.sum() * x[0, 0].numel()
    mean = (weight * x).sum(across) / count.clamp_min(1)
    centred = x - mean.reshape(1, -1, *[1] * (x.ndim - 2))
    return mean, (weight * centred.square()).sum(across) / count.clamp_min(1), count
