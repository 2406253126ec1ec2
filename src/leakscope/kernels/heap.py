"""The C heap of a CPU run, told to keep what is freed until the run is over.

An evaluation allocates and frees the same large tensors thousands of times. glibc takes each of them from the system and hands
it back, and the system clears every page anew: three quarters of the time of a pass over an update (`python benchmarks/heap.py`).
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

# the names in malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


@functools.cache
def _glibc() -> Any:
    """Return the C library if it can be told, else None."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


@functools.cache
def keep_freed() -> bool:
    """Tell the heap, once for this process, to keep freed memory for the next tensor; return whether it listens.

    All threads share one arena: the others cannot hold blocks of over 32 MB.
    """
    library = _glibc()
    if library is None:
        return False
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, -1)
    library.mallopt(M_ARENA_MAX, 1)
    return True


def give_back() -> None:
    """Hand what is free back to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)
