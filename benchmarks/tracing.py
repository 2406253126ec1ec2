"""Tracing: seconds and memory of the exact search, 1,000 reconstructions against 10,000 queries of 3 x 32 x 32.

Once with good guesses (the pictures and noise), with one diverged guess among them (scaled by 1e5), and with identical ones (all
mid-grey): neither may cost more.

python benchmarks/tracing.py [--reconstructions 1000] [--queries 10000] [--memory 268435456]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.inference.tracing import MEMORY, nearest, spread

NOISE, DIVERGED, GREY = 0.3, 1e5, 0.5


def one_diverged(found: Tensor) -> Tensor:
    """Return the guesses with the first of them far out."""
    return torch.cat([DIVERGED * found[:1], found[1:]])


GUESSES: dict[str, Callable[[Tensor], Tensor]] = {
    "good guesses": lambda found: found,
    "one diverged": one_diverged,
    "all mid-grey": lambda found: torch.full_like(found, GREY),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--reconstructions", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--memory", type=int, default=MEMORY)
    told = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    queries = torch.rand(told.queries, 3, 32, 32, generator=generator)
    good = queries[spread(told.reconstructions, told.queries)]
    good = good + NOISE * torch.randn(good.shape, generator=generator)
    print(f"{told.reconstructions} against {told.queries}, {torch.get_num_threads()} threads")
    for name, guesses in GUESSES.items():
        found = guesses(good)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        nearest(queries, found, memory=told.memory)
        took = time.perf_counter() - began
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{name}: {took:.2f} s, {more:.0f} MiB more")


if __name__ == "__main__":
    main()
