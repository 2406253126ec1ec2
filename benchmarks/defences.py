"""What a defence adds to the time of an attack: client and attack together, with and without it, in turn.

    python benchmarks/defences.py [--pairs 7] [--trials 32] [--iterations 4]

CPL on LeNet and random pictures of 28 x 28, form native, no early stop; the attacker is not told (he matches what was sent as a
gradient) or told (he does what docs/aware.md says). Timed apart are the client, and an evaluation of all trials at once. The ratio
is that of processor seconds of a client and 100 evaluations, about what an attack takes, with the defence and without, within a
pair; its median and range over the pairs are printed. The goal is at most 1.10 for the attacker who is not told: one who is told
may compare in a way that costs more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

from leakscope.attacks.aware import aware
from leakscope.attacks.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.types import make_batch
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


def seconds(defences: tuple[Defence, ...], trials: int, iterations: int, *, informed: bool) -> float:
    """Return the processor seconds of a client and `EVALUATIONS` evaluations of an attack on it."""
    model = build("lenet_cpl", (1, 28, 28), 10, {})
    seeds = list(range(trials))
    x = random.uniform(random.key(seeds), (1, 1, 28, 28))
    batch = make_batch(x, (torch.arange(trials) % 10)[:, None], classes=10)
    weights = draw_parameters(model, Uniform(0.5), random.key(seeds))
    client = Client(defences=defences)
    began = time.process_time()
    seen = client.observe(model, weights, batch, seeds)
    played = time.process_time() - began
    knowledge = told(model, client, batch, labels=True)
    attack = cpl(iterations=iterations, threshold=0.0)
    if informed:
        knowledge = tell_defences(knowledge, client, seen)
        attack = aware(attack, knowledge)
    began = time.process_time()
    made = attack.run(model, seen, knowledge, seeds, Execution(form="native"))
    return played + EVALUATIONS * (time.process_time() - began) / float(made.evaluations.max())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load of the machine {os.getloadavg()[0]:.1f}, {asked.pairs} pairs")
    print("| defence | not told, with / without (range) | told, with / without (range) |")
    print("|---|---|---|")
    for name, defence in CASES.items():
        cells = []
        for informed in (False, True):
            ratios = sorted(
                seconds((defence,), asked.trials, asked.iterations, informed=informed)
                / seconds((), asked.trials, asked.iterations, informed=False)
                for _ in range(asked.pairs)
            )
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
