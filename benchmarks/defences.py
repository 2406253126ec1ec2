"""What a defence adds to the time of an attack: the client's part and an evaluation of the attack, with and without it, in turn.

    python benchmarks/defences.py [--rounds 40] [--trials 32]

CPL on LeNet and random pictures of 28 x 28, in the form native on one thread; the attacker is not told (he matches what was sent as a
gradient) or told (he does what docs/explanation/aware.md says). In every round each of the three attacks, without defence, not told and
told, evaluates all trials once, in processor seconds; ratios are taken within a round, so that a slow moment hits both sides.
An attack is a client and 100 evaluations. Printed are medians, and for the attack the range of 95 % of the rounds. The goal is
at most 1.10 for the attacker who is not told: one who is told may compare in a way that costs more.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import aware
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.types import Knowledge, make_batch
from leakscope.defences import (
    Clip,
    DeepCompression,
    Defence,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    Sign,
    Sparsify,
)
from leakscope.models import Uniform, build, draw_parameters

CASES: dict[str, Defence] = {
    "gaussian_noise": GaussianNoise(1e-3),
    "laplace_noise": LaplaceNoise(1e-3),
    "clip": Clip(1.0),
    "sparsify": Sparsify(drop=0.5),
    "deep_compression": DeepCompression(drop=0.5),
    "random_mask": RandomMask(0.5),
    "sign": Sign(),
    "quantise": Quantise(8),
    "low_rank": LowRank(4),
}
EVALUATIONS = 100


@dataclass(frozen=True, slots=True)
class Case:
    """A client that sends, and an attack that evaluates its guess of all trials once."""

    client: Callable[[], object]
    attack: Callable[[], object]


def cases(defences: tuple[Defence, ...], trials: int) -> tuple[Case, Case]:
    """Return the attacker who does not know the defences, and the one who does."""
    model = build("lenet_cpl", (1, 28, 28), 10, {})
    seeds = list(range(trials))
    x = random.uniform(random.key(seeds), (1, 1, 28, 28))
    batch = make_batch(x, (torch.arange(trials) % 10)[:, None], classes=10)
    weights = draw_parameters(model, Uniform(0.5), random.key(seeds))
    client = Client(defences=defences)
    seen = client.observe(model, weights, batch, seeds)
    plain = attacker_knowledge(model, client, batch, labels=True)
    informed = knowledge_of_defences(plain, client, seen)
    iteration = torch.zeros(trials, dtype=torch.int64)

    def case(attack: Matching, knowledge: Knowledge) -> Case:
        problem, _ = attack.prepare(model, seen, knowledge, seeds, Execution(form="native"))
        evaluator = Evaluator(model, problem.unknowns, problem.facts, "native", trace_after=1)
        return Case(
            lambda: client.observe(model, weights, batch, seeds),
            lambda: evaluator(problem.unknowns, iteration),
        )

    return case(cpl(), plain), case(aware(cpl(), informed), informed)


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(defence: Defence, trials: int, rounds: int) -> tuple[str, ...]:
    """Return the cells of a row: the client, then for both attackers an evaluation and the attack."""
    bare, (unaware, informed) = cases((), trials)[0], cases((defence,), trials)
    for case in (bare, unaware, informed):
        for _ in range(3):  # traced and warm
            case.attack()
    clients = np.array([[seconds(case.client) for case in (bare, unaware)] for _ in range(rounds // 4)])
    steps = np.array([[seconds(case.attack) for case in (bare, unaware, informed)] for _ in range(rounds)])
    without, within = np.median(clients, axis=0)
    cells = [f"{within / without:.2f}"]
    for column in (1, 2):
        evaluation = steps[:, column] / steps[:, 0]
        whole = (within + EVALUATIONS * steps[:, column]) / (without + EVALUATIONS * steps[:, 0])
        low, high = np.quantile(whole, [0.025, 0.975])
        cells += [f"{np.median(evaluation):.2f}", f"{np.median(whole):.2f} ({low:.2f} to {high:.2f})"]
    return tuple(cells)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--trials", type=int, default=32)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load of the machine {os.getloadavg()[0]:.1f}, {asked.rounds} rounds")
    print("| defence | client | evaluation, not told | attack, not told | evaluation, told | attack, told |")
    print("|---|---|---|---|---|---|")
    for name, defence in CASES.items():
        print(f"| `{name}` | {' | '.join(compare(defence, asked.trials, asked.rounds))} |", flush=True)


if __name__ == "__main__":
    main()
