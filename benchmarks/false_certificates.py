"""False certificates: how often peeling or SPEAR certifies what is no sample of the client. Every one is a defect.

    python benchmarks/false_certificates.py [--updates 10000] [--draws 256] [--kinds saturated] [--part 0 --parts 4] [--minutes 8]

Updates are of a digits network with 80 hidden units and batches of 2 to 8; float32 and float64 tolerances, a known and a fitted factor.

- mixture, noisy, foreign: random mixtures with half of the gradients zero; the gradient of a batch with noise; that of a batch under other
  weights. No batch caused them: every certificate is false.
- saturated, steps, clipped: a batch under weights from N(0, 1); three local steps; every example with a factor of its own, as clipped ones.
  A certificate is false if it is farther than 1e-3 (root mean square) from every sample of the batch, or has another label than the
  nearest.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import torch
from torch import Tensor

from leakscope.attacks.exact.layer_probe import read_layer
from leakscope.attacks.exact.peeling import Peeled, Probe, Update, peel, slopes_of
from leakscope.attacks.exact.spear import unmix
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import Tree, take, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, make_batch
from leakscope.data import load
from leakscope.models import Torch, build, draw_parameters

UNITS, LEAST, MOST = 80, 2, 8
NONE = ("mixture", "noisy", "foreign")  # no batch caused them
KINDS = (*NONE, "saturated", "steps", "clipped")
NOISE = 1e-3  # relative to the update
NEAR = 1e-3


def drawn(model: Model, seed: int, kind: str) -> Tree:
    """Return weights of one trial in float64."""
    weights = to(draw_parameters(model, Torch(), random.key([seed])), dtype=torch.float64)
    if kind != "saturated":
        return weights
    key = random.key([seed])
    return {name: random.normal(random.fold(key, name), w.shape).double() for name, w in model.parameters.items()}


def read(model: Model, weights: Tree, batch: Batch, knowledge: Knowledge, client: Client) -> tuple[Update, Probe]:
    """Return the update of the first layer, and what the network says about inputs."""
    seen = take(client.observe(model, weights, batch, [0]), 0)
    assert model.entry is not None
    return read_layer(seen.rounds[0], seen.shares, model, model.entry, knowledge)


def update_of(kind: str, number: int, model: Model, batch: Batch, knowledge: Knowledge) -> tuple[Update, Probe]:
    """Return an update of a kind."""
    generator, samples = torch.Generator().manual_seed(number), batch.samples
    client = Client(local=LocalTraining(rate=0.1, epochs=3)) if kind == "steps" else Client()
    update, probe = read(model, drawn(model, number, kind), batch, knowledge, client)
    if kind == "mixture":
        pulls = torch.randn(UNITS, samples, generator=generator, dtype=torch.float64)
        pulls *= torch.rand(UNITS, samples, generator=generator) < 0.5
        update = Update(pulls @ batch.inputs[0].flatten(1), pulls.sum(1), update.columns, update.dtype)
    elif kind == "noisy":
        parts: list[Tensor] = [
            value + NOISE * value.std() * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            for value in (update.weight, update.bias, update.columns)
            if value is not None
        ]
        update = Update(parts[0], parts[1], parts[2] if len(parts) > 2 else None, update.dtype)
    elif kind == "clipped" and probe.witness is not None:
        rows, labels = batch.inputs[0].flatten(1), batch.labels[0]
        scales = torch.rand(samples, generator=generator, dtype=torch.float64) / samples
        pulls = scales[:, None] * slopes_of(probe, rows, labels)
        columns = (scales[:, None, None] * probe.witness(rows, labels)[0]).sum(0)
        update = Update(pulls.mT @ rows, pulls.sum(0), columns, update.dtype)
    elif kind == "foreign":
        update, _ = read(model, drawn(model, 10**9 + number, kind), batch, knowledge, Client())
    return update, probe


def false_ones(kind: str, batch: Batch, peeled: Peeled) -> int:
    """Return how many certified samples are none of the batch."""
    if kind in NONE or not len(peeled.inputs):
        return len(peeled.inputs)
    distances = squared_distances(batch.inputs[0].flatten(1), peeled.inputs).sqrt()
    right = batch.labels[0][distances.argmin(0)] == peeled.labels
    return int((~right | (distances.amin(0) > NEAR)).sum())


def main() -> None:
    """Print the number of updates, certified and false samples of each kind, from time to time and at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=256)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1, help="processes that share the updates")
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so long")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data, began, shown = load("digits"), time.monotonic(), time.monotonic()
    model = to(build("mlp", (1, 8, 8), 10, {"hidden": (UNITS,)}), dtype=torch.float64)
    done, certified, false = Counter[str](), Counter[str](), Counter[str]()
    for number in range(asked.part, asked.updates, asked.parts):
        if time.monotonic() - began > 60 * asked.minutes:
            break
        kind, turn = asked.kinds[number % len(asked.kinds)], number // len(asked.kinds)
        generator, samples = torch.Generator().manual_seed(number), LEAST + turn % (MOST - LEAST + 1)
        chosen = torch.randperm(data.size("test"), generator=generator)[:samples].tolist()
        batch = make_batch(data.pictures("test", chosen)[None].double(), data.labels("test", chosen)[None], classes=10)
        knowledge = attacker_knowledge(model, Client(), batch)
        update, probe = update_of(kind, number, model, batch, knowledge)
        update = Update(update.weight, update.bias, update.columns, (torch.float64, torch.float32)[turn % 2])
        factor = None if turn // 2 % 2 else 1 / samples
        divided = peel(update, probe, factor=factor, most=samples)
        unmixed = unmix(
            update, Peeled.none(update), probe, factor=factor, samples=samples, draws=asked.draws, seed=number
        )
        done[kind] += 1
        for name, peeled in (("peeling", divided), ("spear", unmixed)):
            certified[f"{name}, {kind}"] += len(peeled.inputs)
            false[f"{name}, {kind}"] += false_ones(kind, batch, peeled)
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            show(done, certified, false)
    show(done, certified, false)


def show(done: Counter[str], certified: Counter[str], false: Counter[str]) -> None:
    """Print the table."""
    print("| attack, updates | n | certified samples | false |\n|---|---|---|---|")
    for name in sorted(certified):
        print(f"| {name} | {done[name.split(', ')[1]]} | {certified[name]} | {false[name]} |", flush=True)


if __name__ == "__main__":
    main()
