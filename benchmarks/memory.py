"""Predicted and measured memory of a chunk for every network of the catalogue at three sizes; exits 1 above 1.3 times the prediction.

python benchmarks/memory.py [NETWORK ...] [--sides 32 64 96] [--form native] [--attack ig] [--iterations 122] [--limit 6G] [--jobs 1]
    [--whole] [--out FILE]

Every case is played in a process of its own: clients, attack, scores, as `leakscope run` does. Measured is the growth of its resident
memory up to its peak, for the run (against the prediction) and for the planning before it (against the limit: planning plays a tick of
every form that fits, the largest too); the process has played a small case before, so all code is loaded. A run this short is traced
after 120 evaluations. Cases predicted above `--limit` are listed and not run. A network with settings in `LIGHT` has fewer examples, trials
and iterations. `--jobs` cases run at a time, each with `--limit`. `--out` keeps each row as a JSON line when its case ends; a second run
goes on after them and runs failed cases again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from leakscope.cli.options import parse_memory
from leakscope.core.errors import TooLargeError
from leakscope.kernels.heap import give_back
from leakscope.models.catalogue import MODELS
from leakscope.scenario import read_scenario
from leakscope.sweep.chunk import play_chunk
from leakscope.sweep.driver import unfold
from leakscope.sweep.plan import Plan, make_plan

SIDES = {"vit_b16": (64, 96, 128)}  # the others: 32, 64, 96
LIGHT: dict[str, dict[str, object]] = {  # an evaluation takes seconds
    "vit_b16": {"samples": 2, "trials": 2, "iterations": 4, "form": "loop"},
    "vgg16": {"samples": 2, "trials": 2, "iterations": 10},
    **{
        name: {"iterations": 10}
        for name in ("resnet20", "resnet20_dlg", "resnet8", "resnet18", "convnet", "vit", "alexnet")
    },
}
FAILED = "failed"
ALLOWED = 1.3
SCENARIO = """
data: {{name: digits, size: {side}, samples: {samples}}}
model: {network}
weights: pytorch
attack: {{name: {attack}, iterations: {iterations}}}
knowledge: {{labels: true}}
precision: {{form: {form}}}
trials: {trials}
baselines: []
"""


class Row(NamedTuple):
    """The row of a case, in bytes."""

    network: str
    side: int
    form: str
    predicted: int
    run: int
    planning: int

    def __str__(self) -> str:
        """Return the row of the table."""
        sizes = f"{self.predicted / 2**20:.0f} | {self.run / 2**20:.0f} | {self.run / self.predicted:.2f}"
        return f"| {self.network} | {self.side} | {self.form} | {sizes} | {self.planning / 2**20:.0f} |"


def planned(limit: int | None, **case: object) -> Plan:
    """Return the plan of a case."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.yaml"
        file.write_text(SCENARIO.format(**case), encoding="utf-8")
        sweep = unfold(read_scenario(file))
        return make_plan(sweep, sweep.trials, cores=1, memory=limit)


def resident(field: str) -> int:
    """Return bytes of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def reset_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def play_small(iterations: int) -> None:
    """Play a small case, which loads all code; traced after 40 iterations."""
    small = {"network": "lenet_cpl", "side": 16, "samples": 2, "trials": 2, "attack": "ig", "form": "native"}
    for chunk in planned(None, **small, iterations=iterations).chunks:
        play_chunk(chunk)


def play_case(case: dict[str, object], limit: int, answer: Connection) -> None:
    """Send the form of a case, its predicted bytes, and the measured bytes of its run and of its planning."""
    torch.set_num_threads(1)
    play_small(42)
    give_back()
    before = resident("VmRSS")
    reset_peak()
    try:
        plan = planned(limit, **case)
    except TooLargeError:
        answer.send(("refused", limit, 0, resident("VmHWM") - before))
        return
    planning = resident("VmHWM") - before
    give_back()
    reset_peak()
    [group] = plan.measured.values()
    for chunk in plan.chunks:
        play_chunk(chunk)
    answer.send((group.form, group.bytes, resident("VmHWM") - before, planning))


def in_own_process(case: dict[str, object], limit: int) -> Row:
    """Return the row of a case; its form is 'failed' if its process ended without an answer."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=play_case, args=(case, limit, theirs))
    process.start()
    theirs.close()
    try:
        measured = mine.recv()
    except EOFError:
        measured = (FAILED, 1, sys.maxsize, 0)
    process.join()
    return Row(str(case["network"]), int(str(case["side"])), *measured)


def read_rows(file: Path | None) -> list[Row]:
    """Return the rows of an earlier run, without those that failed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    return [row for row in (Row(*json.loads(line)) for line in lines) if row.form != FAILED]


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(MODELS))
    parser.add_argument("--sides", nargs="*", type=int)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--attack", default="ig")
    parser.add_argument("--iterations", type=int, default=122)
    parser.add_argument("--form", default="null")
    parser.add_argument("--limit", default="6G")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--whole", action="store_true", help="do not shorten the networks in LIGHT, so that they are traced"
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    """Print a row for each case as it ends; return 1 if one needs more than it may."""
    args = options()
    limit = parse_memory(args.limit) or 0
    shared: dict[str, object] = {
        name: getattr(args, name) for name in ("samples", "trials", "attack", "iterations", "form")
    }
    torch.set_num_threads(1)
    rows = read_rows(args.out)
    print(
        "| network | side | form | predicted, MiB | measured, MiB | ratio | planning, MiB |\n|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print(row, flush=True)
    known = {(row.network, row.side) for row in rows}
    cases = [
        {**shared, **({} if args.whole else LIGHT.get(network, {})), "network": network, "side": side}
        for network in args.networks
        for side in args.sides or SIDES.get(network, (32, 64, 96))
        if (network, side) not in known
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        for waiting in as_completed([pool.submit(in_own_process, case, limit) for case in cases]):
            row = waiting.result()
            rows.append(row)
            print(row, flush=True)
            if args.out is not None:
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    worst, over = max(row.run / row.predicted for row in rows), max(row.planning / limit for row in rows)
    print(f"largest ratio {worst:.2f}, allowed {ALLOWED}; planning used at most {over:.2f} of the limit")
    return int(worst > ALLOWED or over > 1)


if __name__ == "__main__":
    sys.exit(main())
