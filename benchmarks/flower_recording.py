"""What recording costs a round of the Flower example: rounds with and without it, in turns, in the same federation.

    python benchmarks/flower_recording.py [--rounds 60]                 CPU and wall time, in one process
    python benchmarks/flower_recording.py --real [--rounds 20]          wall time, on Flower's simulation engine with Ray
    python benchmarks/flower_recording.py --flwr 3 [--rounds 10]        wall time of `flwr run`, so many times each way

Every second round is recorded, so what the machine does meanwhile meets both halves alike. Rounds in one process have no
network and no Ray, so they are shorter than real ones and the share is an upper bound. `--real` runs the engine that `flwr run`
starts, in turns of rounds; `--flwr` the command itself, in turns of whole runs: recorded (two clients, as the example does) and not.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "flower"
sys.path += [str(ROOT / "tests" / "integrations"), str(EXAMPLE)]
SETTINGS = {
    "local-epochs": 1,
    "batch-size": 8,
    "examples": 32,
    "learning-rate": 0.1,
    "defence": "",
    "network": "small",
    "guard": "",
}
WARM_UP = 2


def now() -> tuple[float, float]:
    """Return wall and CPU seconds."""
    return time.perf_counter(), time.process_time()


class Watch:
    """Notes wall and CPU time at the start of each round, and how long the recorder itself was at work."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, float]] = []
        self.work: list[tuple[float, float]] = []

    def stamp(self) -> None:
        """Note that a round starts or that the last one ended."""
        self.starts.append(now())
        self.work.append((0.0, 0.0))

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is counted as the recorder's."""

        def measured(*given: Any) -> Any:
            began = now()
            try:
                return work(*given)
            finally:
                ended, before = now(), self.work[-1]
                self.work[-1] = (before[0] + ended[0] - began[0], before[1] + ended[1] - began[1])

        return measured


def federate(directory: Path, clients: int | None, train: Callable[[Any], None]) -> dict[str, Any]:
    """Return the times of a federation whose odd rounds are recorded; `train(strategy)` runs it."""
    from flwr.serverapp.strategy import FedAvg

    from leakscope.integrations import flower
    from leakscope.store.recorder import Recorder, Recording

    logging.getLogger("flwr").setLevel(logging.ERROR)
    watch = Watch()

    class Timed(FedAvg):  # type: ignore[misc, valid-type]
        def configure_train(self, *given: Any) -> Any:
            watch.stamp()
            return super().configure_train(*given)

    for name in ("_note", "_record"):
        setattr(flower._Watch, name, watch.timed(getattr(flower._Watch, name)))
    recorder = Recorder(Recording(directory=directory, every=2, clients=clients))
    train(flower.record(Timed(), recorder))
    watch.stamp()
    if not recorder.written:
        raise SystemExit(f"nothing was recorded: {dict(recorder.left_out)}")
    pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(watch.starts, watch.starts[1:], strict=False)]
    return {"rounds": pairs, "work": watch.work[:-1], "written": recorder.written, "left_out": dict(recorder.left_out)}


def in_process(rounds: int, clients: int | None) -> dict[str, Any]:
    """Return the times of rounds in this process."""
    import torch
    from digits_federation.client_app import app
    from digits_federation.task import CLIENTS, Net
    from flower_grid import make_grid
    from flwr.app import ArrayRecord

    torch.set_num_threads(1)  # threads that spin for a small network are counted as CPU time

    def train(strategy: Any) -> None:
        grid = make_grid(app, CLIENTS, SETTINGS)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)

    with tempfile.TemporaryDirectory() as directory:
        return federate(Path(directory), clients, train)


def told_settings(context: Any) -> Any:
    """Return a client's context with the settings of the run; Flower lets nobody change its own."""
    made = copy.copy(context)
    made.run_config = SETTINGS
    return made


def simulated(told: Path, rounds: int) -> None:
    """Run the example's clients on Flower's simulation engine, all recorded in odd rounds, and write down the times."""
    from digits_federation.client_app import evaluate_here, train_here
    from digits_federation.task import CLIENTS, Net
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    clients, server = ClientApp(), ServerApp()

    @clients.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        return train_here(message, told_settings(context))

    @clients.evaluate()  # type: ignore[untyped-decorator]
    def evaluate(message: Any, context: Any) -> Any:
        return evaluate_here(message, told_settings(context))

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Any, context: Any) -> None:
        del context

        def start(strategy: Any) -> None:
            strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)

        told.write_text(json.dumps(federate(told.parent / "captures", None, start)))

    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(server_app=server, client_app=clients, num_supernodes=CLIENTS, backend_config=resources)


def real(rounds: int) -> dict[str, Any]:
    """Return the times of rounds on the simulation engine, which gets a process of its own and ends with it."""
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(sys.path[-2:]),
    }
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "told.json"
        command = [sys.executable, __file__, "--rounds", str(rounds), "--told", str(told)]
        done = subprocess.run(command, check=False, env=os.environ | quiet, capture_output=True, text=True)
        if not told.exists():
            raise SystemExit(f"the simulation failed:\n{done.stderr[-2000:]}")
        return dict(json.loads(told.read_text()))


def flwr_runs(times: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds a round of `flwr run` took, recorded and not, run in turns after one run that is not counted."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        shutil.copytree(EXAMPLE, Path(place) / "project")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what follows `finally` is done then, too
        try:
            seconds_of_run(home, Path(place) / "project", "", 1)
            recorded, plain = [], []
            for number in range(times):
                captures = Path(place) / f"captures-{number}"
                recorded.append(seconds_of_run(home, Path(place) / "project", str(captures), rounds))
                plain.append(seconds_of_run(home, Path(place) / "project", "", rounds))
                if not any(captures.glob("*.json")):
                    raise SystemExit("nothing was recorded")
        finally:
            end_superlink(home)
    return recorded, plain


def seconds_of_run(home: Path, project: Path, captures: str, rounds: int) -> float:
    """Return the seconds a round took in one `flwr run`, by Flower's own clock."""
    told = ["--stream", "--run-config", f'captures="{captures}" rounds={rounds}']
    here = str(Path(sys.executable).parent)
    quiet = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = os.environ | quiet | {"PATH": os.pathsep.join([here, os.environ.get("PATH", "")])}
    command = [str(Path(here) / "flwr"), "run", ".", *told]
    done = subprocess.run(command, check=False, cwd=project, env=environment, capture_output=True, text=True)
    found = re.search(r"Strategy execution finished in ([0-9.]+)s", done.stdout + done.stderr)
    if found is None:
        raise SystemExit(f"flwr run failed:\n{(done.stdout + done.stderr)[-2000:]}")
    print(f"{'recorded' if captures else 'not recorded'}: {rounds} rounds in {found[1]} s", file=sys.stderr, flush=True)
    return float(found[1]) / rounds


def end_superlink(home: Path) -> None:
    """End the SuperLink that `flwr run` started in the background: the one whose log lies in our own directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(str(home).encode()) for word in words):
                os.kill(int(process.name), signal.SIGTERM)


def tell_runs(recorded: list[float], plain: list[float]) -> None:
    """Print what a round took in each run."""
    base = statistics.median(plain)
    print(f"flwr run, seconds a round: not recorded {say(plain)}, two clients recorded {say(recorded)}")
    more = statistics.median(recorded) / base - 1
    print(f"  medians {base:.3f} and {statistics.median(recorded):.3f}: {more:+.1%}, n = {len(plain)} runs each")


def say(seconds: list[float]) -> str:
    """Return numbers in a row."""
    return " ".join(f"{each:.3f}" for each in seconds)


def tell(what: str, made: dict[str, Any], column: int) -> None:
    """Print medians with their 95 % intervals (bootstrap over pairs of neighbouring rounds) and n."""
    times = [1000 * pair[column] for pair in made["rounds"]]
    pairs = list(zip(times[WARM_UP::2], times[WARM_UP + 1 :: 2], strict=False))
    work = [1000 * pair[column] for pair in made["work"][WARM_UP::2]]
    base = statistics.median(plain for _, plain in pairs)
    extra = [recorded - plain for recorded, plain in pairs]
    low, high = interval(extra)
    quarters = statistics.quantiles([plain for _, plain in pairs], n=4)
    print(f"{what}: a round without recording {base:.1f} ms (quartiles {quarters[0]:.1f} to {quarters[2]:.1f})")
    print(
        f"  with, minus its neighbour without: {statistics.median(extra):+.1f} ms = {statistics.median(extra) / base:+.1%} "
        f"(95 % {low / base:+.1%} to {high / base:+.1%}), n = {len(pairs)} pairs"
    )
    print(
        f"  the recorder itself: {statistics.median(work):.2f} ms = {statistics.median(work) / base:.1%} of a round "
        f"(quickest {min(work):.2f} ms), n = {len(work)}"
    )
    print(f"  {made['written']} captures written, {sum(made['left_out'].values())} left out")


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main() -> None:
    """Read the options and print what was measured."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=None, help="rounds of each federation, half of them recorded")
    options.add_argument("--real", action="store_true", help="Flower's simulation engine with Ray, wall time")
    options.add_argument("--flwr", type=int, metavar="TIMES", help="the command `flwr run`, so many times each way")
    options.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.told:
        simulated(asked.told, asked.rounds)
    elif asked.flwr:
        tell_runs(*flwr_runs(asked.flwr, asked.rounds or 10))
    elif asked.real:
        tell("on the simulation engine, all clients recorded", real(asked.rounds or 20), 0)
    else:
        for name, clients in (("one client recorded", 1), ("all clients recorded", None)):
            made = in_process(asked.rounds or 60, clients)
            tell(f"in one process, CPU, {name}", made, 1)
            tell(f"in one process, wall, {name}", made, 0)


if __name__ == "__main__":
    main()
