"""The first run: wall seconds of fresh processes that peek at one picture, beside those that only import torch.

Each process is timed from its start to its end, imports included. The two kinds alternate, so that a busy machine slows both.

python benchmarks/first_run.py [--runs 5] [--noise]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

PEEK = """
import torch
from torch import nn
from leakscope import peek
from leakscope.data import load

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, 10))
data = load("digits")
print(peek(model, data.pictures("test", [0]), data.labels("test", [0]), noise={noise}))
"""


def seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--noise", action="store_true", help="also attack under eight noise levels")
    chosen = parser.parse_args()
    codes = {"import torch": "import torch", "peek at one picture": PEEK.format(noise=chosen.noise)}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for code in codes.values():
        seconds(code)  # fill the caches of the disk
    for _ in range(chosen.runs):
        for name, code in codes.items():
            times[name].append(seconds(code))
    for name, each in times.items():
        print(f"{name}: median {statistics.median(each):.2f} s, {min(each):.2f} to {max(each):.2f} s, n = {len(each)}")


if __name__ == "__main__":
    main()
