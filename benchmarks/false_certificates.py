"""False certificates: how often peeling or SPEAR certifies anything in updates that no batch caused. Every one is a defect.

    python benchmarks/false_certificates.py [--updates 10000] [--draws 256]

Updates are of a digits network with 80 hidden units: random mixtures with half of the gradients zero, the gradient of a batch of digits
with noise, and the gradient of such a batch under other weights (foreign). A third of the updates each; float32 and float64 tolerances in
turn.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch

from leakscope.attacks.exact.layer_probe import read_layer
from leakscope.attacks.exact.peeling import Peeled, Update, peel
from leakscope.attacks.exact.spear import unmix
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.tree import take, to
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.models import Torch, build, draw_parameters

SAMPLES, UNITS = 4, 80
KINDS = ("mixture", "noisy", "foreign")
NOISE = 1e-3  # relative to the update


def main() -> None:
    """Print the number of updates and of certified samples of each kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=256)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data, client = load("digits"), Client()
    model = to(build("mlp", (1, 8, 8), 10, {"hidden": (UNITS,)}), dtype=torch.float64)
    assert model.entry is not None
    done: Counter[str] = Counter()
    certified: Counter[str] = Counter()
    for number in range(asked.updates):
        generator = torch.Generator().manual_seed(number)
        chosen = torch.randint(data.size("test"), (SAMPLES,), generator=generator).tolist()
        batch = make_batch(data.pictures("test", chosen)[None].double(), data.labels("test", chosen)[None], classes=10)
        weights = to(draw_parameters(model, Torch(), random.key([number])), dtype=torch.float64)
        other = to(draw_parameters(model, Torch(), random.key([number + asked.updates])), dtype=torch.float64)
        knowledge = attacker_knowledge(model, client, batch)
        seen, foreign = (take(client.observe(model, w, batch, [0]), 0) for w in (weights, other))
        update, probe = read_layer(seen.rounds[0], seen.shares, model, model.entry, knowledge)
        kind = KINDS[number % len(KINDS)]
        if kind == "mixture":
            pulls = torch.randn(UNITS, SAMPLES, generator=generator, dtype=torch.float64)
            pulls *= torch.rand(UNITS, SAMPLES, generator=generator) < 0.5
            update = Update(pulls @ batch.inputs[0].flatten(1), pulls.sum(1), update.columns, update.dtype)
        elif kind == "noisy":
            parts = [
                value + NOISE * value.std() * torch.randn(value.shape, generator=generator, dtype=torch.float64)
                for value in (update.weight, update.bias, update.columns)
                if value is not None
            ]
            update = Update(parts[0], parts[1], parts[2] if len(parts) > 2 else None, update.dtype)
        else:
            update, _ = read_layer(foreign.rounds[0], foreign.shares, model, model.entry, knowledge)
        dtype = (torch.float64, torch.float32)[number // len(KINDS) % 2]
        update = Update(update.weight, update.bias, update.columns, dtype)
        factor = None if number % 2 else 1 / SAMPLES
        divided = peel(update, probe, factor=factor, most=SAMPLES)
        unmixed = unmix(
            update, Peeled.none(update), probe, factor=factor, samples=SAMPLES, draws=asked.draws, seed=number
        )
        done[kind] += 1
        certified[f"peeling, {kind}"] += len(divided.inputs)
        certified[f"spear, {kind}"] += len(unmixed.inputs)
    print("| attack, updates | n | certified samples |\n|---|---|---|")
    for name, number in sorted(certified.items()):
        print(f"| {name} | {done[name.split(', ')[1]]} | {number} |")


if __name__ == "__main__":
    main()
