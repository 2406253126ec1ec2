"""Which examples of the running call are real.

A client of fewer examples is padded so that many clients fit into one batch. Most layers treat each example alone and need
not know; one that looks across the batch (batch norm in train mode) must not count the padding. `counting(mask)` tells it
for the time of one call of the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_RUNNING: ContextVar[Tensor | None] = ContextVar("real_examples_of_the_running_call", default=None)


@contextmanager
def counting(mask: Tensor) -> Iterator[None]:
    """Let layers executed inside count only the examples whose mask is set; calls in other threads keep their own."""
    token = _RUNNING.set(mask)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def real_examples() -> Tensor | None:
    """Return the mask of the running call, None where all examples count."""
    return _RUNNING.get()
