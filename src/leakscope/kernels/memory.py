"""Memory of an evaluation: measured on a narrow batch, extrapolated to a wide one."""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from leakscope.core.errors import is_out_of_memory as is_out_of_memory

V = TypeVar("V")
# large tensors of known size, such as an optimiser's memory, are refused before they are allocated
FILLED = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")


class OverLimitError(MemoryError):
    """A function was stopped because its tensors needed more than the bytes it was allowed."""


class _Live(TorchDispatchMode):
    """Tracks the bytes of live storages created inside, and their maximum; raises above `most`."""

    def __init__(self, most: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.most = most
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        options = kwargs or {}
        if func.overloadpacket.__name__ in FILLED:
            given = options.get("dtype")
            dtype = args[0].dtype if given is None and isinstance(args[0], Tensor) else given or torch.float32
            self._check(math.prod(next(a for a in args if isinstance(a, list | tuple))) * dtype.itemsize)
        result = func(*args, **options)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        self._check()
        return result

    def _check(self, more: int = 0) -> None:
        if self.live + more > self.most:
            raise OverLimitError(f"one trial needs over {(self.live + more) / 2**20:.0f} MiB")

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


def count_bytes(f: Callable[[], V], most: float = math.inf) -> tuple[V, int, int]:
    """Return the result of `f`, the bytes of tensors created inside that it holds, and their peak; OverLimitError above `most`."""
    counter = _Live(most)
    with counter:
        result = f()
    return result, counter.live, counter.peak


def peak_bytes(f: Callable[[], object]) -> int:
    """Return the peak bytes of tensors created inside `f`."""
    return count_bytes(f)[2]


def available(device: torch.device) -> int:
    """Return the bytes free on a device now; on the CPU those of the machine, or fewer in a control group with a limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    values = _numbers(Path("/proc/meminfo"))
    return min(values.get("MemAvailable:", free // 1024) * 1024, left_in_group())


def left_in_group(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the least bytes that the control groups (v1 or v2) of this process and their parents leave; file caches count as free."""
    left = sys.maxsize
    try:
        lines = [line.split(":", 2) for line in groups.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return left  # not Linux
    for _, kinds, path in (line for line in lines if len(line) == 3):
        if kinds and "memory" not in kinds.split(","):
            continue
        top, names = (root / "memory", _V1) if kinds else (root, _V2)
        inner = top / path.lstrip("/")
        for group in (inner, *(folder for folder in inner.parents if folder.is_relative_to(top))):
            limit, used = (_numbers(group / name).get("", -1) for name in names[:2])
            if limit >= 0 and used >= 0:
                left = min(left, limit - used + _numbers(group / "memory.stat").get(names[2], 0))
    return max(left, 0)


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a kernel file by the word before them; 'max' and missing files give none."""
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return {}
    pairs = [("", row[0]) if len(row) == 1 else (row[0], row[1]) for row in rows if row]
    return {name: int(value) for name, value in pairs if value.isdigit()}
