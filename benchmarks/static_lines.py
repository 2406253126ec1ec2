"""Time of `leakscope.inspect` on networks of the catalogue, one thread: median, quartiles and CPU time over calls, and the first call.

python benchmarks/static_lines.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from leakscope.auditing.static.inspection import inspect
from leakscope.models import MODELS

CASES = (
    ("mlp", (1, 28, 28)), ("lenet_cpl", (3, 32, 32)), ("resnet18", (3, 32, 32)), ("resnet18", (3, 224, 224)), ("vit_b16", (3, 224, 224)),
)  # fmt: skip


def main() -> None:
    """Print a row a network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=15)
    calls = parser.parse_args().calls
    torch.set_num_threads(1)
    print("| network | input | n | median ms | quartiles ms | CPU ms | first call ms |\n|---|---|---|---|---|---|---|")
    for name, shape in CASES:
        model = MODELS[name](input_shape=shape, classes=10)
        times, cpu = [], []
        for _ in range(calls + 1):
            began, worked = time.perf_counter(), time.process_time()
            inspect(model, batch=8, input_shape=shape)
            times.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - worked))
        low, middle, high = statistics.quantiles(times[1:], n=4)
        size = "x".join(map(str, shape))
        row = f"{calls} | {middle:.0f} | {low:.0f} to {high:.0f} | {statistics.median(cpu[1:]):.0f} | {times[0]:.0f}"
        print(f"| {name} | {size} | {row} |")


if __name__ == "__main__":
    main()
