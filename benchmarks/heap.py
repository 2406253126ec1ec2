"""One pass over an update of 128 trials (128 x 100 x 768, DLG's head), before and after the heap keeps what is freed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from leakscope.kernels.heap import keep_freed

PASSES = 30


def milliseconds(f: Callable[[], object]) -> str:
    """Return the median and range of several calls."""
    took = []
    for _ in range(PASSES):
        began = time.perf_counter()
        f()
        took.append((time.perf_counter() - began) * 1e3)
    took.sort()
    return f"{statistics.median(took):6.1f} ms ({took[0]:.1f} to {took[-1]:.1f}, n = {PASSES})"


def main() -> None:
    """Print both."""
    torch.set_num_threads(1)
    x, y = torch.randn(128, 100, 768), torch.randn(128, 1, 1)
    passes: dict[str, Callable[[], object]] = {
        "product with a number a trial": lambda: x * y,
        "difference": lambda: x - x,
        "squared norm, batched product": lambda: torch.bmm(x.reshape(128, 1, -1), x.reshape(128, -1, 1)),
        "squared norm, one pass": lambda: torch.linalg.vector_norm(x, dim=(1, 2)).square(),
    }
    for title, setting in (("as glibc does by itself", False), ("keeping what is freed", True)):
        if setting:
            keep_freed()
        print(title)
        for name, f in passes.items():
            print(f"  {name:<32} {milliseconds(f)}")


if __name__ == "__main__":
    main()
