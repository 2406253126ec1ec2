"""Peeling of batches: how many samples come back exactly, beside plain division, and whether anything false is ever certified.

    LEAKSCOPE_DATA=... python benchmarks/peeling.py [ROW ...] [--batches 3] [--draws 0] [--float64] [--random]
    ... --out DIR --part 0 --parts 16 --minutes 9    # one of 16 processes; a later call without parts prints all of DIR

Every row is a data set, a network and a batch size; each batch has weights and samples of its own: the first test samples, or random
training samples (`--random`). Recall is the share of samples that are certified and within 1e-3 (root mean square) of a true one,
`labels` the share of certified ones with the right label, the next column the number of certified samples that are farther from any.
`chain` is the share that is alone on a unit once the samples before it are subtracted, by the true activations: no peeling reaches
more. Seconds are CPU seconds of one batch on one thread, the gradient given. Rows named `epochs` are weights after local epochs:
nothing is certified there, `division` stays. Rows named `normal`
have the weights of the paper's program: N(0, 0.5^2) in the first layer, Glorot's uniform ones behind it, no biases.
Intervals: Student's t over batches.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks import analytic, peeling
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import Tree, to
from leakscope.core.types import Batch, LocalTraining, Observation, make_batch
from leakscope.data import load
from leakscope.data.dataset import Part
from leakscope.metrics.interval import estimate_mean
from leakscope.models import Torch, build, draw_parameters
from stored_rows import add_rows, holds, read_rows

NEAR = 1e-3
PAPER = {
    "fashion_mnist-normal-64": 1.0, "fashion_mnist-normal-128": 0.722, "mnist-normal-64": 0.484, "mnist-normal-128": 0.017,
    "cifar10-normal-64": 0.994, "cifar10-normal-128": 0.666, "cifar100-normal-64": 1.0, "cifar100-normal-128": 1.0,
    "svhn-normal-64": 0.959, "svhn-normal-128": 0.881, "emnist_byclass-normal-64": 0.672, "emnist_byclass-normal-128": 0.019,
}  # fmt: skip  # table II of the paper, without changes to the biases


@dataclass(frozen=True)
class Row:
    data: str
    hidden: tuple[int, ...]
    batch: int
    weights: str = "torch"  # or normal: as in the paper, or trained: three epochs of Adam from torch's
    epochs: int = 0  # local epochs in batches of 8 at rate 0.01 that end in weights; 0: one gradient


ROWS = {
    "fashion_mnist-32": Row("fashion_mnist", (1000,), 32),
    "fashion_mnist-64": Row("fashion_mnist", (1000,), 64),
    "fashion_mnist-deep-32": Row("fashion_mnist", (256, 128), 32),
    "fashion_mnist-trained-32": Row("fashion_mnist", (1000,), 32, "trained"),
    "adult-16": Row("adult", (100, 100), 16),
    "adult-32": Row("adult", (100, 100), 32),
}
ROWS |= {f"fashion_mnist-epochs-{n}": Row("fashion_mnist", (1000,), 16, epochs=n) for n in (1, 2, 5)}
ROWS |= {name: Row(name.split("-")[0], (1000,), int(name.split("-")[2]), "normal") for name in PAPER}


def weights_of(row: Row, model: Model, seed: int) -> Tree:
    """Return the weights of one batch's network."""
    key = random.key([seed])
    if row.weights == "normal":
        return {name: paper_weight(random.fold(key, name), w, row.hidden[0]) for name, w in model.parameters.items()}
    drawn = draw_parameters(model, Torch(), key)
    return drawn if row.weights == "torch" else trained(row, model, drawn, seed)


def paper_weight(key: Tensor, like: Tensor, units: int) -> Tensor:
    """Return one tensor of weights as the paper's program draws it: `like` has `units` rows in the first layer."""
    if like.ndim == 1:
        return torch.zeros(1, *like.shape)
    if len(like) == units:
        return 0.5 * random.normal(key, like.shape)
    return math.sqrt(6 / sum(like.shape)) * (2 * random.uniform(key, like.shape) - 1)


def trained(row: Row, model: Model, drawn: Tree, seed: int) -> Tree:
    """Return weights after three epochs of Adam (rate 1e-3, batches of 64) on up to 10,000 training samples."""
    data = load(row.data)
    number = min(10_000, data.size("train"))
    weights = {name: w[0].clone().requires_grad_() for name, w in drawn.items()}
    adam = torch.optim.Adam(weights.values(), lr=1e-3)
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    for _ in range(3):
        for part in order.split(64):
            x, y = data.pictures("train", part.tolist()), data.labels("train", part.tolist())
            loss = torch.nn.functional.cross_entropy(model.apply(weights, model.buffers, x, random.key(0))[0], y)
            adam.zero_grad()
            loss.backward()
            adam.step()
    return {name: w.detach()[None] for name, w in weights.items()}


def recovered(batch: Batch, inputs: Tensor, labels: Tensor) -> tuple[float, float, int]:
    """Return the share of true samples that are among these, the share of these with the right label, and how many are none."""
    if not len(inputs):
        return 0.0, float("nan"), 0
    distances = squared_distances(batch.inputs[0].double(), inputs.double()).sqrt()
    right = batch.labels[0][distances.argmin(0)] == labels
    none = int((distances.amin(0) > NEAR).sum())
    return float((distances.amin(1) <= NEAR).double().mean()), float(right.double().mean()), none


def warm_up() -> None:
    """Import what the first attack of a process imports, so that no batch is charged for it."""
    data = load("digits")
    model = build("mlp", data.input_shape, data.classes, {"hidden": (20,)})
    batch = make_batch(data.pictures("test", range(2))[None], data.labels("test", range(2))[None], classes=data.classes)
    seen = Client().observe(model, draw_parameters(model, Torch(), random.key([0])), batch, [0])
    peeling(draws=0).run(model, seen, attacker_knowledge(model, Client(), batch), [0])


def private_batch(row: Row, number: int, *, drawn: bool) -> Batch:
    """Return the batch of a number: test samples in their order, or training samples drawn at random."""
    data = load(row.data)
    part: Part = "train" if drawn else "test"
    order = torch.randperm(data.size(part), generator=torch.Generator().manual_seed(number)).tolist()
    index = order[: row.batch] if drawn else range(number * row.batch, (number + 1) * row.batch)
    return make_batch(data.pictures(part, index)[None], data.labels(part, index)[None], classes=data.classes)


def measure(row: Row, number: int, asked: argparse.Namespace) -> dict[str, float]:
    """Return what one batch gives."""
    data = load(row.data)
    model = build("mlp", data.input_shape, data.classes, {"hidden": row.hidden})
    client = Client(local=LocalTraining(epochs=row.epochs, batch_size=8, rate=0.01)) if row.epochs else Client()
    given = (model, weights_of(row, model, number), private_batch(row, number, drawn=asked.random))
    used, weights, sample = to(given, dtype=torch.float64) if asked.float64 else given
    seen: Observation = client.observe(used, weights, sample, [number])
    knowledge = attacker_knowledge(used, client, sample)
    began = time.process_time()
    found = peeling(draws=asked.draws).run(used, seen, knowledge, [number])
    took = time.process_time() - began
    divided = analytic().run(used, seen, knowledge, [number])
    proved = torch.zeros(1) if found.proved is None else found.proved[0]
    share, right, none = recovered(sample, found.inputs[0][proved], found.labels[0][proved])
    division = recovered(sample, divided.inputs[0], divided.labels[0])[0]
    chain = reached(used, weights, sample)
    return {"recall": share, "right": right, "none": none, "division": division, "chain": chain, "seconds": took}


def reached(model: Model, weights: Tree, batch: Batch) -> float:
    """Return the share of samples that are alone on a unit of the first layer once those before them are subtracted."""
    if model.entry is None or model.entry.bias is None:
        raise ValueError(f"{model.name} has no first dense layer")
    active = batch.inputs[0].flatten(1) @ weights[model.entry.weight][0].mT + weights[model.entry.bias][0] > 0
    known = torch.zeros(len(active), dtype=torch.bool)
    while bool((new := ~known & active[:, active[~known].sum(0) == 1].any(1)).any()):
        known |= new
    return float(known.double().mean())


def show(rows: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Print the table of all rows that have a batch."""
    print("| row | n | recall | 95 % | chain | paper | division | labels | farther than 1e-3 | CPU s a batch |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        mine = [row for row in rows if row["row"] == name]
        if not mine:
            continue
        recall, right, none, division, chain, seconds = torch.tensor(
            [[row[key] for key in ("recall", "right", "none", "division", "chain", "seconds")] for row in mine],
            dtype=torch.float64,
        ).mT
        interval = estimate_mean(recall[:, None], torch.ones(len(mine), 1, dtype=torch.bool), within=(0.0, 1.0))
        print(
            f"| {name} | {len(mine)} | {interval.value:.3f} | {interval.low:.3f} to {interval.high:.3f} | "
            f"{float(chain.mean()):.3f} | {PAPER.get(name, '')} | {float(division.mean()):.3f} | "
            f"{float(right.nanmean()):.3f} | {int(none.sum())} | "
            f"{float(seconds.mean()):.2f} |",
            flush=True,
        )


def main() -> None:
    """Measure what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument(
        "--draws", type=int, default=2**10, help="starts of SPEAR on what division leaves; 0: without it"
    )
    parser.add_argument("--float64", action="store_true", help="the client computes in float64")
    parser.add_argument("--random", action="store_true", help="draw batches from the training part, as the paper")
    parser.add_argument("--out", type=Path, help="directory of batches already measured; new ones are added")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1, help="processes that share the batches")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no batch after so long")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    warm_up()
    plain = {"draws": asked.draws, "float64": asked.float64, "random": asked.random}
    stored = read_rows(asked.out) if asked.out else []
    tasks = [(name, n) for n in range(asked.batches) for name in asked.rows if fits(ROWS[name], n, asked)]
    for name, number in tasks[asked.part :: asked.parts]:
        settings = {"row": name, "number": number, **plain}
        if holds(stored, settings):
            continue
        if time.monotonic() - began > 60 * asked.minutes:
            break
        made = settings | measure(ROWS[name], number, asked)
        stored.append(made)
        if asked.out:
            add_rows(asked.out / f"{asked.part}.jsonl", [made])
    show([row for row in stored if all(row[key] == value for key, value in plain.items())], asked.rows)


def fits(row: Row, number: int, asked: argparse.Namespace) -> bool:
    """Return whether the test part has a batch of this number."""
    return bool(asked.random) or (number + 1) * row.batch <= load(row.data).size("test")


if __name__ == "__main__":
    main()
