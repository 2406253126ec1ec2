"""False certificates: how often peeling or SPEAR certifies what is no sample of the client. Every one is a defect.

    python benchmarks/false_certificates.py [--updates 10000] [--draws 256] [--kinds mixture noisy foreign]
    ... --out DIR --part 0 --parts 16 --minutes 9    # one of 16 processes; --minutes 0 prints all of DIR

Updates are of a digits network with 80 hidden units and batches of 2 to 8; float32 and float64 tolerances, a known and a fitted factor.

- mixture, noisy, foreign: random mixtures with half of the gradients zero; the gradient of a batch with noise; that of a batch under other
  weights. No batch caused them: every certificate is false.
- saturated, steps, clipped: a batch under weights from N(0, 1); three local steps; every example with a factor of its own, as clipped ones.
- narrow: a network with 4, 8 or 16 units and 2, 3 or 4 classes, one of which has every example of half of the batches.
  A certificate is false if it is farther than 1e-3 (root mean square) from every sample of the batch, or has another label than the
  nearest.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.exact.layer_probe import read_layer
from leakscope.attacks.exact.ledger import Peeled, Probe, Update, slopes_of
from leakscope.attacks.exact.peeling import peel
from leakscope.attacks.exact.spear import unmix
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import Tree, take, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, make_batch
from leakscope.data import Dataset, load
from leakscope.models import Torch, build, draw_parameters
from stored_rows import add_rows, read_rows

UNITS, LEAST_UNITS, LEAST, MOST = 80, 4, 2, 8
NONE = ("mixture", "noisy", "foreign")  # no batch caused them
KINDS = (*NONE, "saturated", "steps", "clipped", "narrow")
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


def attacked(model: Model, data: Dataset, kind: str, number: int, draws: int) -> dict[str, tuple[int, int]]:
    """Return how many samples each attack certifies of one update, and how many of these are false."""
    generator, samples = torch.Generator().manual_seed(number), LEAST + number % (MOST - LEAST + 1)
    chosen = torch.randperm(data.size("test"), generator=generator)[:samples].tolist()
    labels = data.labels("test", chosen)
    if kind == "narrow":
        units, classes = LEAST_UNITS * 2 ** (number % 3), 2 + number // 8 % 3
        model = to(build("mlp", (1, 8, 8), classes, {"hidden": (units,)}), dtype=torch.float64)
        labels = labels % classes if number // 4 % 2 else 0 * labels
    batch = make_batch(data.pictures("test", chosen)[None].double(), labels[None], classes=model.classes)
    knowledge = attacker_knowledge(model, Client(), batch)
    update, probe = update_of(kind, number, model, batch, knowledge)
    update = Update(update.weight, update.bias, update.columns, (torch.float64, torch.float32)[number % 2])
    factor = None if number // 2 % 2 else 1 / samples
    peeled = {"peeling": peel(update, probe, factor=factor, most=samples)}
    if draws:
        none = Peeled.none(update)
        peeled["spear"] = unmix(update, none, probe, factor=factor, samples=samples, draws=draws, seed=number)
    return {name: (len(each.inputs), false_ones(kind, batch, each)) for name, each in peeled.items()}


def main() -> None:
    """Print the number of updates, certified and false samples of each kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=256, help="starts of SPEAR; 0: peeling alone")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, help="directory of counts; a later call goes on behind them")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1, help="processes that share the updates")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; 0: print what is stored")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data, began = load("digits"), time.monotonic()
    model = to(build("mlp", (1, 8, 8), 10, {"hidden": (UNITS,)}), dtype=torch.float64)
    rows = read_rows(asked.out) if asked.out else []
    done = {(row["kind"], row["number"], row["draws"]) for row in rows}
    for place in range(asked.part, asked.updates, asked.parts):
        if time.monotonic() - began > 60 * asked.minutes:
            break
        number, kind = divmod(place, len(asked.kinds))
        row = {"kind": asked.kinds[kind], "number": number, "draws": asked.draws}
        if tuple(row.values()) in done:
            continue
        rows.append(row | attacked(model, data, asked.kinds[kind], number, asked.draws))
        if asked.out:
            add_rows(asked.out / f"{asked.part}.jsonl", rows[-1:])
    show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print("| attack | updates | n | certified samples | false |\n|---|---|---|---|---|")
    for name in ("peeling", "spear"):
        for kind in KINDS:
            mine = [row[name] for row in rows if row["kind"] == kind and name in row]
            if mine:
                certified, false = map(sum, zip(*mine, strict=True))
                print(f"| {name} | {kind} | {len(mine)} | {certified} | {false} |", flush=True)


if __name__ == "__main__":
    main()
