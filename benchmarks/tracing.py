"""Tracing: seconds and memory of the exact search, 1,000 reconstructions against 10,000 queries of 3 x 32 x 32.

python benchmarks/tracing.py [--reconstructions 1000] [--queries 10000] [--memory 268435456]
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from leakscope.inference.tracing import MEMORY, nearest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--reconstructions", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--memory", type=int, default=MEMORY)
    told = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    queries = torch.rand(told.queries, 3, 32, 32, generator=generator)
    found = torch.rand(told.reconstructions, 3, 32, 32, generator=generator)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    nearest(queries, found, memory=told.memory)
    took = time.perf_counter() - began
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{told.reconstructions} against {told.queries}: {took:.2f} s, {torch.get_num_threads()} threads, {more:.0f} MiB more"
    )


if __name__ == "__main__":
    main()
