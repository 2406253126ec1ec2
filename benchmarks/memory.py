"""Predicted and measured memory of a chunk for every network of the catalogue at three sizes; exits 1 above 1.3 times the prediction.

python benchmarks/memory.py [NETWORK ...] [--sides 32 64 96] [--form native] [--attack ig] [--iterations 122] [--limit 6G]

Every case is played in a process of its own: clients, attack, scores, as `leakscope run` does. Measured is the growth of its resident
memory up to its peak, for the run (against the prediction) and for the planning before it (against the limit: planning plays a tick of
every form that fits, the largest too); the process has played a small case before, so all code is loaded. A run this short is traced
after 120 evaluations. Cases predicted above `--limit` are listed and not run. A network with settings in `LIGHT` has fewer examples, trials
and iterations.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from leakscope.cli.options import parse_memory
from leakscope.core.errors import InputError
from leakscope.kernels.heap import give_back
from leakscope.models.catalogue import MODELS
from leakscope.scenario import read_scenario
from leakscope.sweep.chunk import play_chunk
from leakscope.sweep.driver import unfold
from leakscope.sweep.plan import Plan, make_plan

SIDES = {"vit_b16": (64, 96, 128)}  # the others: 32, 64, 96
LIGHT = {"vit_b16": {"samples": 2, "trials": 2, "iterations": 4, "form": "loop"}}  # an evaluation takes seconds
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
    except InputError as error:
        if "memory limit" not in str(error):
            raise
        answer.send(("refused", limit, 0, resident("VmHWM") - before))
        return
    planning = resident("VmHWM") - before
    give_back()
    reset_peak()
    [group] = plan.measured.values()
    for chunk in plan.chunks:
        play_chunk(chunk)
    answer.send((group.form, group.bytes, resident("VmHWM") - before, planning))


def main() -> int:
    """Print a row for each case; return 1 if one needs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(MODELS))
    parser.add_argument("--sides", nargs="*", type=int)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--attack", default="ig")
    parser.add_argument("--iterations", type=int, default=122)
    parser.add_argument("--form", default="null")
    parser.add_argument("--limit", default="6G")
    args = parser.parse_args()
    limit = parse_memory(args.limit) or 0
    case = {name: getattr(args, name) for name in ("samples", "trials", "attack", "iterations", "form")}
    torch.set_num_threads(1)
    play_small(42)
    print(
        "| network | side | form | predicted, MiB | measured, MiB | ratio | planning, MiB |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    worst = over = 0.0
    context = multiprocessing.get_context("spawn")
    for network in args.networks:
        for side in args.sides or SIDES.get(network, (32, 64, 96)):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=play_case,
                args=({**case, **LIGHT.get(network, {}), "network": network, "side": side}, limit, theirs),
            )
            process.start()
            theirs.close()
            try:
                form, predicted, run, planning = mine.recv()
            except EOFError:
                form, predicted, run, planning = "failed", 1, sys.maxsize, 0
            process.join()
            ratio = run / predicted
            worst, over = max(worst, ratio), max(over, planning / limit)
            sizes = f"{predicted / 2**20:.0f} | {run / 2**20:.0f} | {ratio:.2f} | {planning / 2**20:.0f}"
            print(f"| {network} | {side} | {form} | {sizes} |", flush=True)
    print(f"largest ratio {worst:.2f}, allowed {ALLOWED}; planning used at most {over:.2f} of the limit")
    return int(worst > ALLOWED or over > 1)


if __name__ == "__main__":
    sys.exit(main())
