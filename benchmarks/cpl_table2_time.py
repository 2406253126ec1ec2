"""What the whole of CPL's table 2 would take: two columns as measured, two reckoned from operations.

    python benchmarks/cpl_table2_time.py [--store leakscope-papers] [--measured 223 177] [--rate 17639] [--loop 27]

The LeNet columns (MNIST, LFW) are measured by cpl_table2.py. The CIFAR columns run DLG's ResNet20 without strides: their evaluations are
the mean number of an attack in the runs of `leakscope paper run cpl-table-2 --scale small` times 1,000 trials; their time is that
number over the rate of `leakscope bench resnet20`, divided by how many more operations an evaluation has without strides. With
`--store` the means are read from such a run, otherwise they are those of ours (20 trials an attack).
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from leakscope.core import random
from leakscope.models import Torch, build, draw_parameters

TRIALS = 1000
OURS = ((20, 440.0), (20, 1420.0), (20, 4801.0))  # trials and mean evaluations of CPL, DLG, IG on CIFAR-100
PART = Path("cpl-table-2/small/cifar100-resnet/records.sqlite")


def operations(name: str, settings: dict[str, object]) -> int:
    """Return the operations of products in one forward pass on one picture of 32 x 32."""
    model = build(name, (3, 32, 32), 100, settings)
    weights = {n: w[0] for n, w in draw_parameters(model, Torch(), random.key([0])).items()}
    with FlopCounterMode(display=False) as counter:
        model.apply(weights, model.buffers, torch.rand(2, 3, 32, 32), random.key(0))
    return int(counter.get_total_flops()) // 2


def evaluations(store: Path | None) -> list[tuple[int, float]]:
    """Return for each attack of the run how many trials it has and their mean number of evaluations."""
    if store is None:
        return list(OURS)
    path = store / PART
    if not path.is_file():
        raise SystemExit(f"{path} is not there; leakscope paper run cpl-table-2 --only cifar100-resnet --scale small")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as found:
        rows = found.execute("select count(*), avg(evaluations) from record group by cell order by cell").fetchall()
    return [(int(n), float(mean)) for n, mean in rows[:3]]


def main() -> None:
    """Print the reckoning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--store", type=Path, help="read the evaluations of a run of your own")
    parser.add_argument("--measured", type=float, nargs="+", default=[223.0, 177.0], help="seconds of columns run")
    parser.add_argument("--rate", type=float, default=17639.0, help="trial-evaluations a second of bench resnet20")
    parser.add_argument("--loop", type=float, default=27.0, help="the same of the loop")
    told = parser.parse_args()
    strided, whole = operations("resnet20", {"width": 16}), operations("resnet20_dlg", {"batch_statistics": True})
    more = whole / strided
    print(
        f"operations of a forward pass: {strided / 1e6:.1f} M with strides, {whole / 1e6:.1f} M without: {more:.2f} times"
    )
    each = evaluations(told.store)
    for name, (n, mean) in zip(("cpl", "dlg", "ig"), each, strict=True):
        print(f"{name}: {mean:,.0f} evaluations a trial (n = {n})")
    column = TRIALS * sum(mean for _, mean in each)
    ours, theirs = column * more / told.rate, column * more / told.loop
    print(
        f"a CIFAR column: {column / 1e6:.2f} M evaluations, {ours / 60:.0f} min batched, {theirs / 86400:.1f} days in the loop"
    )
    print(f"whole table: {(sum(told.measured) + 2 * ours) / 3600:.2f} h (goal 2)")


if __name__ == "__main__":
    main()
