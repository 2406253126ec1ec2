"""What a deep image prior recovers beside `ig`, on a sigmoid LeNet and CIFAR-10: PSNR and SSIM, n and spread.

    LEAKSCOPE_DATA=... python benchmarks/deep_prior.py [--weights uniform] [--trials 4] [--steps 2000]

One image of the CIFAR-10 test set a trial, label known, the same images and weights for every attack.
"""

from __future__ import annotations

import argparse
import sys

from torch import Tensor

from leakscope.attacks import deep_prior
from leakscope.attacks.recipes import ig
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.models import Torch, Uniform, build, draw_parameters
from leakscope.play import attack, expose


def spread(values: Tensor) -> str:
    """Return mean, smallest and largest."""
    return f"{float(values.mean()):.2f} ({float(values.min()):.2f} to {float(values.max()):.2f})"


def main() -> int:
    """Print a row for each attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--weights", choices=("torch", "uniform"), default="uniform")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    data, seeds = load("cifar10"), list(range(args.trials))
    places = list(range(100, 100 + args.trials))
    inputs = data.pictures("test", places)[:, None]
    batch = make_batch(inputs, data.labels("test", places)[:, None], classes=data.classes)
    model = build("lenet_dlg", data.input_shape, data.classes)
    weights = draw_parameters(model, Torch() if args.weights == "torch" else Uniform(0.5), random.key(seeds))
    exposure = expose(model, Client(scaling=data.statistics), weights, batch, seeds, labels=True)
    methods = {
        "ig, tv 1e-4": ig(iterations=args.steps),
        "ig, tv 0.03": ig(tv=0.03, iterations=args.steps),
        "deep_prior": deep_prior(width=args.width, iterations=args.steps),
    }
    for name, method in methods.items():
        result = attack(exposure, method)
        scores, mismatch = result.scores, result.reconstruction.mismatch
        print(
            f"{name}, {args.weights} weights, {args.steps} steps: PSNR {spread(scores.psnr)} dB, SSIM {spread(scores.ssim)}, "
            f"mismatch {float(mismatch.mean()):.3g}, {result.seconds:.0f} s, n = {args.trials}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
