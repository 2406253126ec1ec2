"""Independent work items on PyTorch's threads, one thread each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

P = TypeVar("P")
R = TypeVar("R")


def on_cores(work: Callable[[P], R], parts: Sequence[P], threads: int) -> list[R]:
    """Return work(part) of every part, in order; with several threads each part runs on a single one."""
    if threads == 1 or len(parts) == 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads, "leakscope", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        torch.set_num_threads(1)
        try:
            return list(pool.map(work, parts))
        finally:
            torch.set_num_threads(threads)
