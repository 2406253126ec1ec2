"""Makes the C heap keep freed memory during a CPU run.

An evaluation allocates and frees the same large tensors thousands of times. By default glibc returns each of them to the system,
which clears every page again: three quarters of the time of a pass over an update (`python benchmarks/heap.py`).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys

# names in malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, else None."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


@functools.cache
def keep_freed() -> bool:
    """Make the heap keep freed memory (once per process); return whether it does. One arena: others cannot hold blocks over 32 MB."""
    library = _glibc()
    if library is None:
        return False
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, -1)
    library.mallopt(M_ARENA_MAX, 1)
    return True


def give_back() -> None:
    """Return free memory to the system, that of cycles too: a traced graph, which planning leaves, is one that holds tensors."""
    gc.collect()
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)
