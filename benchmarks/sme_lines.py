"""The tables of docs/explanation/weight-updates.md that are no attacks' costs: the line between the weights, labels, other optimisers.

    python benchmarks/sme_lines.py lines --data emnist_byclass.npz --invert --clients 8 --epochs 10 --batch 50
    python benchmarks/sme_lines.py labels --data emnist_byclass.npz --invert --clients 20 --epochs 10 --samples 10
    python benchmarks/sme_lines.py optimisers --clients 3            # bundled Fashion-MNIST; needs leakscope's data readers

Imports torch, numpy and safetensors alone (`optimisers` reads the bundled data).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.label_rules.counts import counts
from leakscope.attacks.recipes import ig_update, sme
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.scaling import Scaling
from leakscope.core.types import LocalTraining, make_batch
from leakscope.metrics.labels import label_overlap
from leakscope.models import Torch, build, draw_parameters
from leakscope_papers.theory.line import describe, sample_lines
from sme import CIFAR100, FEMNIST, NETWORKS, mean_of, paired_psnr, pictures

FASHION = Scaling((0.2860,), (0.3530,))


def local_of(args: argparse.Namespace) -> LocalTraining:
    """Return the local training asked for."""
    return LocalTraining(
        epochs=args.epochs, batch_size=args.batch, rate=args.rate, optimiser=args.optimiser, momentum=args.momentum
    )


def lines(args: argparse.Namespace) -> None:
    """Print the rows of SME's tables 1, 4 and 5 for one setting."""
    batch, scaling = pictures(args), CIFAR100 if args.network == "cnn_cifar" else FEMNIST
    model = build(args.network, *NETWORKS[args.network])
    keys = random.key(list(range(args.clients)))
    weights = draw_parameters(model, Torch(), keys)
    found = sample_lines(model, local_of(args), weights, scaling.scale(batch.inputs, 3), batch.labels, keys)
    for name, row in describe(found).items():
        print(f"{name}: {row.mean:.4f} +- {row.deviation:.4f} (n = {row.n})")
    print(f"least cosine on any line: {float(found.cosines.min()):.3f}")


def labels(args: argparse.Namespace) -> None:
    """Print how much of the clients' label sets is read off their updates."""
    batch, scaling = pictures(args), CIFAR100 if args.network == "cnn_cifar" else FEMNIST
    model = build(args.network, *NETWORKS[args.network])
    client, seeds = Client(local_of(args), scaling=scaling), list(range(args.clients))
    seen = client.observe(model, draw_parameters(model, Torch(), random.key(seeds)), batch, seeds)
    for known in (True, False):
        read = counts(model, seen, attacker_knowledge(model, client, batch, local=known), random.key(seeds))
        right = label_overlap(batch.labels, read)
        mean, low, high = mean_of(right)
        whole = int((right == 1).sum())
        print(
            f"local training {'told' if known else 'not told'}: {mean:.3f} [{low:.3f}, {high:.3f}], {whole} of {len(seeds)} whole"
        )


def optimisers(args: argparse.Namespace) -> None:
    """Print cosines and PSNRs after SGD, momentum and Adam."""
    from leakscope.data import load

    data, number = load("fashion_mnist"), args.clients * args.samples
    shape = (args.clients, args.samples)
    inputs, classes = data.pictures("test", range(number)), torch.as_tensor(data.labels("test", range(number)))
    batch = make_batch(inputs.unflatten(0, shape), classes.reshape(shape), classes=10)
    model, seeds = build("cnn_mnist", (1, 28, 28), 10), list(range(args.clients))
    weights = draw_parameters(model, Torch(), random.key(seeds))
    for name, local in {
        "sgd": LocalTraining(epochs=20, rate=0.004),
        "momentum": LocalTraining(epochs=20, rate=0.0005, momentum=0.9),
        "adam": LocalTraining(epochs=20, rate=1e-4, optimiser="adam"),
    }.items():
        found = describe(
            sample_lines(model, local, weights, FASHION.scale(batch.inputs, 3), batch.labels, random.key(seeds))
        )
        print(name, {key: (round(row.mean, 3), round(row.deviation, 3)) for key, row in found.items()}, flush=True)
        client = Client(local, scaling=FASHION)
        seen, knowledge = (
            client.observe(model, weights, batch, seeds),
            attacker_knowledge(model, client, batch, labels=True, local=False),
        )
        for attack in (sme(iterations=args.iterations), ig_update(iterations=args.iterations)):
            began = time.perf_counter()
            made = attack.run(model, seen, knowledge, seeds, Execution(form="loop"))
            mean, low, high = mean_of(paired_psnr(batch.inputs, made.inputs).mean(1))
            print(
                f"{name} {attack.name}: {mean:.2f} dB [{low:.2f}, {high:.2f}], {time.perf_counter() - began:.0f} s",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement."""
    top = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    kinds = top.add_subparsers(required=True)
    for name, run in (("lines", lines), ("labels", labels), ("optimisers", optimisers)):
        one = kinds.add_parser(name, help=(run.__doc__ or "").split("\n")[0])
        one.set_defaults(run=run)
        one.add_argument("--clients", type=int, default=8)
        one.add_argument("--samples", type=int, default=3 if name == "optimisers" else 50)
        if name == "optimisers":
            one.add_argument("--iterations", type=int, default=300)
            continue
        one.add_argument("--data", type=Path, required=True)
        one.add_argument("--network", default="cnn_mnist", choices=list(NETWORKS))
        one.add_argument("--invert", action="store_true", help="dark ink on white, for EMNIST")
        one.add_argument("--epochs", type=int, default=10)
        one.add_argument("--batch", type=int, default=10)
        one.add_argument("--rate", type=float, default=0.004)
        one.add_argument("--optimiser", default="sgd", choices=["sgd", "adam"])
        one.add_argument("--momentum", type=float, default=0.0)
        one.add_argument("--seed", type=int, default=0)
    args = top.parse_args(arguments)
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
