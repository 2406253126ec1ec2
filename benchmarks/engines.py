"""Threads against processes, two Ray workers against one, and what an engine costs beside the work.

    python benchmarks/engines.py [--rounds 5] [threads] [ray] [costs]

Every round runs all ways of a comparison one after another, so that noise of a shared machine hits all of them; the ratio
is taken within a round, and its median and range over the rounds are printed. A rate counts trials between the first
beginning and the last end of the chunks after a warm-up, by the workers' own clock: start-up is told apart, under `costs`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.plan import Execution
from leakscope.attacks.recipes import cpl, ig
from leakscope.clients import Client, told
from leakscope.core import random
from leakscope.core.types import Batch, make_batch
from leakscope.data import load
from leakscope.experiments.engines import Engine, Needs, processes, serial
from leakscope.integrations.ray import ray_engine
from leakscope.models import Torch, Uniform, build, draw_parameters

MEASURED = 4


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
    began: float
    ended: float
    trials: int


CASES = {
    "cpl": Case("lenet_cpl", (1, 28, 28), "native", 32, 6),
    "ig": Case("cnn_cifar", (3, 32, 32), "parallel", 4, 60),
}


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
    began = time.monotonic()
    how.run(model, observation, told(model, client, batch, labels=True), seeds, Execution(form=case.form))
    return Span(began, time.monotonic(), case.trials)


def echo(number: int) -> np.ndarray:
    """Return a million bytes: a chunk that costs nothing but its way."""
    return np.full(125_000, float(number))


def rate(engine: Engine, case: str, needs: Needs, warm: int) -> float:
    """Return trials per second over the measured chunks."""
    size = CASES[case].trials
    chunks = [(Chunk(f"{case} {i}", case, i * size), needs) for i in range(warm + MEASURED)]
    spans = [span for chunk, span in engine(attack, chunks) if chunk.first >= warm * size]
    return sum(s.trials for s in spans) / (max(s.ended for s in spans) - min(s.began for s in spans))


def compare(title: str, ways: dict[str, Callable[[], float]], rounds: int) -> None:
    """Print the rates of all ways and their ratios to the first."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    load_before = os.getloadavg()[0]
    for _ in range(rounds):
        for name, way in ways.items():
            rates[name].append(way())
    base = next(iter(rates.values()))
    print(
        f"\n{title} ({rounds} rounds of {MEASURED} chunks; load average {load_before:.1f} -> {os.getloadavg()[0]:.1f})"
    )
    print("| way | trials/s, median (range) | ratio to the first, median (range) |\n|---|---|---|")
    for name, each in rates.items():
        ratios = [a / b for a, b in zip(each, base, strict=True)]
        print(f"| {name} | {spread(each)} | {spread(ratios)} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def threads_against_processes(rounds: int) -> None:
    for case in CASES:
        ways = {
            "1 process of 1 thread": lambda c=case: rate(serial, c, Needs(1), 1),
            "1 process of 2 threads": lambda c=case: rate(serial, c, Needs(2), 1),
            "2 processes of 1 thread": lambda c=case: rate(processes(2), c, Needs(1), 2),
        }
        compare(f"threads against processes: {case}", ways, rounds)


def two_ray_workers_against_one(rounds: int) -> None:
    for case in CASES:
        ways = {
            "1 Ray worker of 1 thread": lambda c=case: rate(ray_engine(in_flight=1), c, Needs(1), 2),
            "2 Ray workers of 1 thread": lambda c=case: rate(ray_engine(in_flight=2), c, Needs(1), 2),
        }
        ways["2 Ray workers of 1 thread"]()  # both workers have imported torch
        compare(f"Ray: {case}", ways, rounds)


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
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    what = asked.what or ["threads", "ray", "costs"]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    print(f"{torch.__version__=} cores={os.cpu_count()}")
    if "threads" in what:
        threads_against_processes(asked.rounds)
    if "ray" in what:
        with started_ray():
            two_ray_workers_against_one(asked.rounds)
    if "costs" in what:
        costs(asked.rounds)


if __name__ == "__main__":
    import engines  # this file by its module name, under which workers can import it too

    engines.main()
