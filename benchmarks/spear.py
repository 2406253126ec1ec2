"""SPEAR without division: which batches come back whole, by batch size.

    LEAKSCOPE_DATA=... python benchmarks/spear.py [--batches 10] [--sizes 4 8 12 16 20 24] [--hidden 200 200 200 200 200 200] [--float32]

Fashion-MNIST, standardised, a ReLU network of PyTorch's first weights; each batch has weights and test samples of its own. `whole` is the
share of batches of which every sample is certified, `false` the number of certified samples farther than 1e-3 (root mean square) from every
true one. Seconds are CPU seconds of one batch on one thread, the gradient given: median and largest. Intervals: Wilson's.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import to
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.metrics.interval import wilson
from leakscope.models import Torch, build, draw_parameters

NEAR = 1e-3


def main() -> None:
    """Print a row as soon as its batches are done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 12, 16, 20, 24])
    parser.add_argument("--hidden", type=int, nargs="+", default=[200] * 6)
    parser.add_argument("--draws", type=int, default=2**12)
    parser.add_argument("--float32", action="store_true", help="the client computes in float32")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data, dtype = load("fashion_mnist"), torch.float32 if asked.float32 else torch.float64
    client = Client(scaling=data.statistics)
    model = to(build("mlp", data.input_shape, data.classes, {"hidden": tuple(asked.hidden)}), dtype=dtype)
    attack = Peeling(name="spear", divide=False, draws=asked.draws)
    print(
        "| batch | n | whole | 95 % | recall | false | CPU s a batch (median, largest) |\n|---|---|---|---|---|---|---|"
    )
    for size in asked.sizes:
        recalls, false, seconds = list[float](), 0, list[float]()
        for number in range(min(asked.batches, data.size("test") // size)):
            index = range(number * size, (number + 1) * size)
            inputs = data.pictures("test", index)[None].to(dtype)
            batch = make_batch(inputs, data.labels("test", index)[None], classes=data.classes)
            weights = to(draw_parameters(model, Torch(), random.key([number])), dtype=dtype)
            seen = client.observe(model, weights, batch, [number])
            began = time.process_time()
            result = attack.run(model, seen, attacker_knowledge(model, client, batch), [number])
            seconds.append(time.process_time() - began)
            assert result.proved is not None
            certified = result.inputs[0][result.proved[0]]
            recalls.append(len(certified) / size)
            if len(certified):
                false += int((squared_distances(batch.inputs[0], certified).sqrt().amin(0) > NEAR).sum())
        whole = sum(recall == 1 for recall in recalls)
        low, high = wilson(whole / len(recalls), len(recalls))
        print(
            f"| {size} | {len(recalls)} | {whole / len(recalls):.2f} | {low:.2f} to {high:.2f} | "
            f"{statistics.fmean(recalls):.3f} | {false} | "
            f"{statistics.median(seconds):.1f}, {max(seconds):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
