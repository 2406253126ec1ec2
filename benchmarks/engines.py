"""Threads against processes, two Ray workers against one, and what an engine costs beside the work.

    python benchmarks/engines.py [--rounds 5] [--patience 600] [--case cpl] [threads] [ray] [costs]

Every round runs all ways of a comparison one after another, so that noise of a shared machine hits all of them; the ratio
is taken within a round, and its median and range over the rounds are printed. A rate counts trials between the first
beginning and the last end of the chunks after a warm-up, by the workers' own clock: start-up is told apart, under `costs`.

Who else is at work on the machine decides the outcome, so that is measured too: the cores' busy time less that of our
chunks. A round waits up to `--patience` seconds for the machine to be idle, and rounds that others disturbed are told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl, ig
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.types import Batch, make_batch
from leakscope.data import load
from leakscope.integrations.ray import ray_engine
from leakscope.models import Torch, Uniform, build, draw_parameters
from leakscope.sweep.engines import Engine, Needs, processes, serial

MEASURED = 4
QUIET = 0.1  # share of the machine that others may have before a round counts as disturbed
CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Case:
    """A network, an attack and a form; a chunk of it takes a few seconds on one core."""

    network: str
    shape: tuple[int, int, int]
    form: str
    trials: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Chunk:
    name: str
    case: str
    first: int


@dataclass(frozen=True, slots=True)
class Span:
    """When a chunk ran, how busy all cores had been by then (seconds since boot), and what it took of that."""

    began: float
    ended: float
    busy: tuple[float, float]
    own: float
    trials: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Trials a second, and the share of the machine that others had meanwhile."""

    trials: float
    others: float


CASES = {
    "cpl": Case("lenet_cpl", (1, 28, 28), "native", 32, 4),
    "ig": Case("cnn_cifar", (3, 32, 32), "parallel", 4, 45),
}


def busy_seconds() -> float:
    """Return the seconds that all cores together have been busy since boot, time stolen by other machines included."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def settle(patience: float) -> None:
    """Wait until the machine is idle, or patience ends."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        before = busy_seconds()
        time.sleep(2)
        if busy_seconds() - before < QUIET * 2 * CORES:
            return


def clients(case: Case, first: int) -> Batch:
    """Return bundled pictures where they fit the network, else random ones: speed does not depend on them."""
    items = range(first, first + case.trials)
    keys = random.key(list(items))
    if case.shape == (1, 28, 28):
        data = load("fashion_mnist")
        inputs, labels = data.pictures("test", items)[:, None], torch.as_tensor(data.labels("test", items))[:, None]
    else:
        inputs, labels = random.uniform(keys, (1, *case.shape)), (keys % 10)[:, None]
    return make_batch(inputs, labels, classes=10)


def attack(chunk: Chunk) -> Span:
    """Carry out one chunk and return when it ran, without the playing of its clients."""
    case = CASES[chunk.case]
    batch, seeds = clients(case, chunk.first), list(range(chunk.first, chunk.first + case.trials))
    model, client = build(case.network, case.shape, 10), Client()
    draw = Uniform(0.5) if chunk.case == "cpl" else Torch()
    observation = client.observe(model, draw_parameters(model, draw, random.key(seeds)), batch, seeds)
    make: Callable[..., Matching] = cpl if chunk.case == "cpl" else ig
    how = make(iterations=case.iterations, threshold=0.0)
    knowledge = attacker_knowledge(model, client, batch, labels=True)
    began, busy, own = time.monotonic(), busy_seconds(), time.process_time()
    how.run(model, observation, knowledge, seeds, Execution(form=case.form))
    return Span(began, time.monotonic(), (busy, busy_seconds()), time.process_time() - own, case.trials)


def echo(number: int) -> np.ndarray:
    """Return a million bytes: a chunk that costs nothing but its way."""
    return np.full(125_000, float(number))


def rate(engine: Engine, case: str, needs: Needs, warm: int) -> Rate:
    """Return trials per second over the measured chunks."""
    size = CASES[case].trials
    chunks = [(Chunk(f"{case} {i}", case, i * size), needs) for i in range(warm + MEASURED)]
    spans = [span for chunk, span in engine(attack, chunks) if chunk.first >= warm * size]
    seconds = max(s.ended for s in spans) - min(s.began for s in spans)
    busy = max(s.busy[1] for s in spans) - min(s.busy[0] for s in spans)
    others = (busy - sum(s.own for s in spans)) / (seconds * CORES)
    return Rate(sum(s.trials for s in spans) / seconds, others)


def compare(title: str, ways: dict[str, Callable[[], Rate]], rounds: int, patience: float) -> None:
    """Print the rates of all ways and their ratios to the first: of all rounds, and of those nobody disturbed."""
    made: list[list[Rate]] = []
    for number in range(rounds):
        settle(patience)
        made.append([way() for way in ways.values()])
        told_ = ", ".join(f"{r.trials:.2f} ({r.others:.0%})" for r in made[-1])
        print(f"{title}, round {number}: trials/s (share of others): {told_}", file=sys.stderr, flush=True)
    quiet = [each for each in made if max(r.others for r in each) < QUIET]
    print(f"\n{title}, {MEASURED} chunks a round")
    print("| way | rounds | trials/s, median (range) | ratio to the first, median (range) | share of others |")
    print("|---|---|---|---|---|")
    for label, kept in (("undisturbed", quiet), ("all", made)):
        for i, name in enumerate(ways if kept else ()):
            rates, ratios = [each[i].trials for each in kept], [each[i].trials / each[0].trials for each in kept]
            share = statistics.median(each[i].others for each in kept)
            print(f"| {name} | {len(kept)} {label} | {spread(rates)} | {spread(ratios)} | {share:.0%} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def threads_against_processes(cases: list[str], rounds: int, patience: float) -> None:
    for case in cases:
        ways = {
            "1 process of 1 thread": lambda c=case: rate(processes(1), c, Needs(1), 1),
            "1 process of 2 threads": lambda c=case: rate(processes(1), c, Needs(2), 1),
            "2 processes of 1 thread": lambda c=case: rate(processes(2), c, Needs(1), 2),
        }
        compare(f"threads against processes: {case}", ways, rounds, patience)


def two_ray_workers_against_one(cases: list[str], rounds: int, patience: float) -> None:
    for case in cases:
        ways = {
            "1 Ray worker of 1 thread": lambda c=case: rate(ray_engine(in_flight=1), c, Needs(1), 2),
            "2 Ray workers of 1 thread": lambda c=case: rate(ray_engine(in_flight=2), c, Needs(1), 2),
        }
        ways["2 Ray workers of 1 thread"]()  # both workers have imported torch
        compare(f"Ray: {case}", ways, rounds, patience)


def costs(rounds: int, number: int = 200) -> None:
    """Print seconds to the first result, and milliseconds for every further chunk of a megabyte."""

    def timed(engine: Engine) -> tuple[float, float]:
        began = time.monotonic()
        made = engine(echo, ((i, Needs()) for i in range(number + 8)))
        next(made)
        first = time.monotonic()
        for _ in range(7):
            next(made)
        warm = time.monotonic()
        for _ in made:
            pass
        return first - began, (time.monotonic() - warm) / number * 1000

    print(f"\ncosts ({rounds} rounds, {number} chunks that return 1 MB)")
    print("| engine | s to the first result, median (range) | ms a chunk, median (range) |\n|---|---|---|")
    for name, engine in {"serial": serial, "processes(2)": processes(2), "ray": ray_engine(cores=2)}.items():
        made = [timed(engine) for _ in range(rounds)]
        print(f"| {name} | {spread([a for a, _ in made])} | {spread([b for _, b in made])} |", flush=True)


@contextlib.contextmanager
def started_ray() -> Iterator[None]:
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="*", help="threads, ray, costs; all of them unless told")
    parser.add_argument("--case", choices=list(CASES), help="one case; all of them unless told")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=0, help="seconds to wait for an idle machine before a round")
    asked = parser.parse_args()
    cases = [asked.case] if asked.case else list(CASES)
    what = asked.what or ["threads", "ray", "costs"]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    print(f"{torch.__version__=} cores={CORES}")
    if "threads" in what:
        threads_against_processes(cases, asked.rounds, asked.patience)
    if "ray" in what:
        with started_ray():
            two_ray_workers_against_one(cases, asked.rounds, asked.patience)
    if "costs" in what:
        costs(asked.rounds)


if __name__ == "__main__":
    import engines  # this file by its module name, under which workers can import it too

    engines.main()
