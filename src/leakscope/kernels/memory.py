"""Memory of an evaluation: measured on a narrow batch, extrapolated to a wide one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Live(TorchDispatchMode):
    """Tracks the bytes of live storages created inside, and their maximum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address = int(storage._cdata)
        if address in self.seen:
            return
        self.seen.add(address)
        size = int(storage.nbytes())
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self.live -= size
        self.seen.discard(address)


def peak_bytes(f: Callable[[], object]) -> int:
    """Return the peak bytes of tensors created inside `f`."""
    counter = _Live()
    with counter:
        f()
    return counter.peak


def available(device: torch.device) -> int:
    """Return the bytes free on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = pages * size
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            values = [line.split() for line in lines if line.startswith("MemAvailable")]
        free = int(values[0][1]) * 1024
    except (OSError, IndexError, ValueError):
        pass  # not Linux: use the free pages
    return free


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on CPU or CUDA."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
