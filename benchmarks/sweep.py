"""What the sweep machinery costs: its share of a run of 1,000 trials, planning 100,000, showing 100,000 records, --help.

python benchmarks/sweep.py [share] [plan] [show] [help]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def scenario(trials: int, cells: int, iterations: int) -> dict[str, object]:
    return {
        "name": "machinery",
        "data": "fashion_mnist",
        "model": "lenet_cpl",
        "defences": [{"name": "gaussian_noise"}],
        "knowledge": {"defence": False},
        "attack": {"name": "cpl", "iterations": iterations},
        "trials": trials,
        "grid": {"defences.0.sigma": [i * 1e-4 for i in range(cells)]},
    }


def share() -> None:
    """Count the machinery's own seconds beside those of the attacks."""
    from leakscope.scenario import scenario_of
    from leakscope.sweep import run_scenario

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = run_scenario(scenario_of(scenario(125, 8, 5)), Path(folder) / "run")
        wall = time.perf_counter() - began
    part = done.overhead_seconds / done.attack_seconds
    print(
        f"share: {done.wanted} trials, {wall:.0f} s; attacks {done.attack_seconds:.1f} s, machinery {done.overhead_seconds:.2f} s: "
        f"{part:.1%} (target under 3 %)"
    )


def plan() -> None:
    """Time planning of 100,000 trials and its memory, in a process of its own."""
    code = """
import resource, time
import leakscope.sweep.driver as driver
from leakscope.scenario import scenario_of
from leakscope.sweep import make_plan
import sys; sys.path.insert(0, sys.argv[1])
from sweep import scenario
began = time.perf_counter()
unfolded = driver.unfold(scenario_of(scenario(1000, 100, 5)))
made = make_plan(unfolded, unfolded.trials, measure=False)
text = str(made.plain())
planned = time.perf_counter() - began
make_plan(unfolded, unfolded.trials)
print(f"plan: {len(unfolded.trials):,} trials in {len(made.chunks)} chunks: {planned:.1f} s (target 5 s), measuring the forms "
      f"{time.perf_counter() - began - planned:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB peak "
      "(target 500 MB)")
"""
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True)


def show() -> None:
    """Time `leakscope show` of 100,000 records."""
    from leakscope.core.record import Cell, Record, SampleScore
    from leakscope.store import Landing, Run

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", "name: many", {})
        cells = [
            Cell(id=f"{i:016x}", settings={"attack": {"name": "cpl"}, "data": {"name": "x"}}, axes={"sigma": i})
            for i in range(50)
        ]
        with run.writing() as writer:
            writer.renew("name: many", cells, {})
            number = writer.add_plan({"chunks": []})
            for chunk in range(200):
                records = tuple(
                    Record(
                        trial=f"{chunk * 500 + i:024x}",
                        cell=cells[(chunk * 500 + i) % 50].id,
                        number=(chunk * 500 + i) // 50,
                        seed=i,
                        items=(i,),
                        outcome="converged",
                        iterations=7,
                        evaluations=140,
                        mismatch=1e-5,
                        label_overlap=1.0,
                        seconds=0.1,
                        version="0",
                        samples=(
                            SampleScore(
                                sample=0, label=1, guess=1, mse=float(rng.random()), psnr=20.0, ssim=0.9,
                                label_correct=True, recovered=bool(rng.random() < 0.5), finite=True,
                            ),
                        ),
                    )
                    for i in range(500)
                )  # fmt: skip
                writer.land(Landing(chunk=f"c{chunk}", plan=number, records=records))
        times = [_seconds("show", str(Path(folder) / "run")) for _ in range(5)]
    print(f"show: 100,000 records in {min(times):.2f} to {max(times):.2f} s, n = {len(times)} (target 2 s)")


def help_() -> None:
    """Time `leakscope --help`."""
    times = [_seconds("--help") for _ in range(7)]
    print(f"help: {min(times):.2f} to {max(times):.2f} s, n = {len(times)} (target 0.5 s)")


def _seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "leakscope", *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    parts = {"help": help_, "plan": plan, "show": show, "share": share}
    for name in sys.argv[1:] or parts:
        parts[name]()
