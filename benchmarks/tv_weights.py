"""Which weight of total variation IG needs, and whether the mismatch to the update picks it without the truth.

    LEAKSCOPE_DATA=... python benchmarks/tv_weights.py [--network lenet_dlg] [--weights uniform] [--batch 1] [--trials 6] [--steps 500]

Images of the CIFAR-10 test set, labels known. A row is a weight: PSNR of each trial, the mismatch that the attacker sees. The last
rows are the best single weight for all, the weight with the smallest mismatch for each trial, and the best for each by the truth.
"""

from __future__ import annotations

import argparse
import sys

import torch

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import ig
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.tree import to
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.models import Torch, Uniform, build, draw_parameters
from leakscope.play import attack, expose

WEIGHTS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.2)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default="lenet_dlg")
    parser.add_argument("--weights", choices=("torch", "uniform"), default="torch")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tv", nargs="+", type=float, default=list(WEIGHTS))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    data, seeds = load("cifar10"), list(range(args.trials))
    places = range(100, 100 + args.batch * args.trials)
    inputs = data.pictures("test", list(places)).reshape(args.trials, args.batch, *data.input_shape)
    labels = data.labels("test", list(places)).reshape(args.trials, args.batch)
    model = build(args.network, data.input_shape, data.classes)
    weights = draw_parameters(model, Torch() if args.weights == "torch" else Uniform(0.5), random.key(seeds))
    model, weights = to((model, weights), device=args.device)
    batch = make_batch(inputs, labels, classes=data.classes)
    exposure = expose(model, Client(scaling=data.statistics), weights, batch, seeds, labels=True)
    psnr, mismatch = [], []
    for tv in args.tv:
        result = attack(exposure, ig(tv=tv, iterations=args.steps), execution=Execution(device=args.device))
        psnr.append(result.scores.psnr.double().mean(1))
        mismatch.append(result.reconstruction.mismatch.double())
        row = " ".join(f"{value:6.2f}" for value in psnr[-1].tolist())
        print(
            f"tv {tv:<8g} {float(psnr[-1].mean()):6.2f} dB, mismatch {float(mismatch[-1].mean()):.3g}: {row}",
            flush=True,
        )
    scores, ends = torch.stack(psnr), torch.stack(mismatch)
    chosen = scores.gather(0, ends.argmin(0, keepdim=True))[0]
    n = args.trials
    print(f"best single weight {float(scores.mean(1).max()):.2f} dB (n = {n})")
    print(f"smallest mismatch  {float(chosen.mean()):.2f} +- {float(chosen.std()):.2f} dB (n = {n})")
    print(f"best by the truth  {float(scores.amax(0).mean()):.2f} dB (n = {n})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
