"""Dishonest servers: how many samples of a batch each manipulation gets back, beside the honest server and what is published.

    LEAKSCOPE_DATA=... python benchmarks/servers.py [ROW ...] [--batches 3]

Every batch has honest weights, server draws and test samples of its own; public data are 10,000 training images. `share` is the part of
the private samples within `rms` (root mean square) of a reconstructed one: 1e-3 for exact readouts, 3e-2 where the scale of a sample is
only known up to its bin (LOKI). `honest` is the same reader on the weights that were not manipulated, `nearest` the share for the
nearest public image, an oracle. Intervals: Student's t over batches.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks import analytic
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import Tree, to
from leakscope.core.types import Batch, LocalTraining, Reconstruction, make_batch
from leakscope.data import load
from leakscope.defences import Clip, GaussianNoise
from leakscope.metrics.interval import estimate_mean
from leakscope.models import Torch, build, draw_parameters
from leakscope.play import attack, expose
from leakscope.play.dishonest import manipulate
from leakscope.servers.imprint import Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

PUBLIC = 10_000
HONEST = Client()
LOCAL = Client(local=LocalTraining(epochs=5, batch_size=16))
PAPER = "0.772 (100 clients)"


@dataclass(frozen=True)
class Row:
    data: str
    batch: int
    manipulation: Manipulation
    published: str = ""
    network: str = "mlp"
    units: int = 1000
    client: Client = HONEST
    normal: bool = False  # weights N(0, 0.5^2) as in the papers on dense layers, else PyTorch's
    rms: float = 1e-3
    double: bool = False  # the client computes in float64
    fewest: int = 1  # samples of a unit below which the client does not send its gradient


def law(bins: int, batch: int) -> str:
    """Return the share of samples alone in one of so many equally likely bins."""
    return f"{(1 - 1 / bins) ** (batch - 1):.3f} (law)"


SETS = ("cifar10", "cifar100", "svhn", "fashion_mnist", "mnist", "emnist_byclass")
ROWS = {
    "imprint-256": Row("cifar10", 64, Imprint(), law(256, 64), units=256),
    "imprint-1000": Row("cifar10", 64, Imprint(), law(1000, 64)),
    "imprint-inserted-256": Row("cifar10", 64, Imprint(inserted=256), law(256, 64), network="cnn_cifar"),
    "imprint-fedavg": Row("cifar10", 64, Imprint(inserted=256), network="cnn_cifar", client=LOCAL),
    "imprint-sparse-fedavg": Row("cifar10", 64, Imprint(inserted=256, sparse=True), network="cnn_cifar", client=LOCAL),
    "trap-mnist": Row("mnist", 100, TrapWeights(factor=0.70, reader=analytic()), "0.54", normal=True),
    "trap-cifar10": Row("cifar10", 100, TrapWeights(factor=0.95, reader=analytic()), "0.54", normal=True),
    "trap-mnist-peeled": Row("mnist", 100, TrapWeights(factor=0.70), normal=True),
    "trap-cifar10-peeled": Row("cifar10", 100, TrapWeights(factor=0.95), normal=True),
    "trap-mnist-3000-20": Row("mnist", 20, TrapWeights(factor=0.70, reader=analytic()), "1.0", units=3000, normal=True),
    "trap-cifar10-3000-20": Row("cifar10", 20, TrapWeights(factor=0.95, reader=analytic()), "0.945", units=3000, normal=True),
}  # fmt: skip
ROWS |= {
    f"soliton-{name}": Row(name, 256, SolitonBiases(batch=256), "at least 0.856", normal=True, double=True)
    for name in SETS
}
ROWS |= {
    "soliton-cifar10-float32": Row("cifar10", 256, SolitonBiases(batch=256), normal=True),
    "soliton-uniform-cifar10": Row("cifar10", 256, SolitonBiases(batch=256, from_data=False), normal=True, double=True),
}
for clients in (2, 5, 20, 100):
    together = Client(aggregate=clients)
    ROWS |= {
        f"loki-{clients}": Row("cifar10", 64 * clients, Loki(clients), PAPER, "cnn_cifar", client=together, rms=3e-2),
        f"imprint-sum-{clients}": Row("cifar10", 64 * clients, Imprint(), law(1000, 64 * clients), client=together),
    }
TRAPS: dict[str, Manipulation] = {"imprint": Imprint(), "trap": TrapWeights(), "soliton": SolitonBiases(batch=64)}
for trap, chosen in TRAPS.items():
    plain = Row("cifar10", 64, chosen, normal=trap != "imprint")
    ROWS |= {
        f"{trap}-64": plain,
        f"{trap}-64-clipped": replace(plain, client=Client(defences=(Clip(1.0),))),
        f"{trap}-64-noise": replace(plain, client=Client(defences=(Clip(1.0), GaussianNoise(1e-4)))),
        f"{trap}-64-censored": replace(plain, fewest=4),
    }


def weights_of(row: Row, model: Model, seed: int) -> Tree:
    """Return the honest weights of one batch's network."""
    key = random.key([seed])
    if row.normal:
        return {name: 0.5 * random.normal(random.fold(key, name), w.shape) for name, w in model.parameters.items()}
    return draw_parameters(model, Torch(), key)


def share(batch: Batch, result: Reconstruction, rms: float) -> float:
    """Return the part of the private samples that are among the reconstructed ones."""
    distance = squared_distances(batch.inputs[0].double(), result.inputs[0].double()).sqrt()
    return float((distance.amin(1) <= rms).double().mean())


def play(row: Row, number: int, public: Tensor, public_labels: Tensor) -> tuple[float, float, float, float]:
    """Return the shares of one batch (manipulated, honest, nearest public image) and seconds."""
    data = load(row.data)
    settings = {"hidden": (row.units,)} if row.network == "mlp" else {}
    model = build(row.network, data.input_shape, data.classes, settings)
    index = range(number * row.batch, (number + 1) * row.batch)
    batch = make_batch(data.pictures("test", index)[None], data.labels("test", index)[None], classes=data.classes)
    weights = weights_of(row, model, number)
    if row.double:
        model, weights, batch = to((model, weights, batch), dtype=torch.float64)
    began = time.perf_counter()
    given = (model, batch, row.manipulation, public, public_labels)
    result = manipulate(*given, client=row.client, weights=weights, seeds=[number], fewest=row.fewest)
    took = time.perf_counter() - began
    honest = float("nan")
    if isinstance(row.manipulation, TrapWeights | SolitonBiases):
        seen = expose(model, row.client, weights, batch, [number])
        honest = share(batch, attack(seen, row.manipulation.reader).reconstruction, row.rms)
    nearest = share(batch, result.baselines["nearest_public"].reconstruction, row.rms)
    return share(batch, result.attack.reconstruction, row.rms), honest, nearest, took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--batches", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| row | set | B | n | share | 95 % | published | honest | nearest | s a batch |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for name in asked.rows:
        row = ROWS[name]
        data = load(row.data)
        known = range(min(PUBLIC, data.size("train")))
        public, labels = data.pictures("train", known), data.labels("train", known)
        results = torch.tensor([play(row, number, public, labels) for number in range(asked.batches)])
        ones = torch.ones(len(results), 1, dtype=torch.bool)
        interval = estimate_mean(results[:, :1].double(), ones, within=(0.0, 1.0))
        honest, nearest, took = results.nanmean(0)[1:].tolist()
        print(
            f"| {name} | {row.data} | {row.batch} | {len(results)} | {interval.value:.3f} | {interval.low:.3f} to {interval.high:.3f} | "
            f"{row.published} | {'' if honest != honest else f'{honest:.3f}'} | {nearest:.3f} | {took:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
