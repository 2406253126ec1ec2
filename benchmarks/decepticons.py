"""Manipulations of a small GPT: the share of tokens that come back in their sentences and places, and of read ones that are wrong.

    python benchmarks/decepticons.py [--batches 10] [--clients 1 2 5 20 100]     # Decepticons, all weights trained
    python benchmarks/decepticons.py --adapters [--clients 1 2 5 20 100]          # low-rank adapters alone
    python benchmarks/decepticons.py --adapters --epochs 3 --rate 0.01            # after local training

GPT-2 in small (2,000 tokens, 12 places, 3 blocks or more, 4 heads), a classifier of 4 classes, sentences of Zipf tokens, 1,000 public
ones; every batch has weights, server draws and sentences of its own. `honest` is the same reader on weights that were not manipulated,
`nearest` the nearest public sentence, chosen with the truth. With `--clients` the update is the mean of so many clients of 4 sentences each
(width 128). With `--adapters` only low-rank adapters on the named layers are trained. Intervals: Student's t over batches.
"""

from __future__ import annotations

import argparse
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import DEFAULT
from leakscope.clients import Client
from leakscope.core.model import Model
from leakscope.core.pairing import pair
from leakscope.core.types import Batch, LocalTraining
from leakscope.metrics.interval import estimate_mean
from leakscope.models import adapt, from_module, gpt
from leakscope.models.token_model import TokensFromNumbers
from leakscope.play import expose, reconstruct, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.adapter_imprint import AdapterImprint
from leakscope.servers.decepticons import Decepticons
from leakscope.servers.small_transformer import UNREAD

VOCABULARY, LENGTH, PUBLIC, CLASSES = 2000, 12, 1000, 4


def sentences(number: int, seed: int) -> Tensor:
    """Return tokens drawn by Zipf's law."""
    chance, generator = 1 / torch.arange(1, VOCABULARY + 1).double(), torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(chance, number * LENGTH, replacement=True, generator=generator)
    return drawn.reshape(number, LENGTH).float()


def placed(truth: Tensor, guess: Tensor) -> tuple[float, float]:
    """Return the share of tokens in their places, and of read ones that are wrong, each sentence beside its best guess."""
    guess = guess[pair(-(truth[:, None] == guess).sum(2).double())]
    read = guess != UNREAD
    return float((truth == guess).double().mean()), float((read & (truth != guess)).sum() / read.sum().clamp_min(1))


class Network(NamedTuple):
    """One row of a table: the network, its adapters (none: all weights are trained), and who trains it."""

    batch: int
    width: int = 128
    clients: int = 1
    layers: str = ""
    rank: int = 0
    depth: int = 3


WHOLE = [Network(4, 64), Network(4), Network(8), Network(16)]
ADAPTED = [
    *(Network(batch, layers="value", rank=rank) for rank in (4, 8, 16, 64) for batch in (1, 4, 16)),
    *(Network(16, layers="value", rank=8, depth=depth) for depth in (6, 12)),
    *(Network(batch, layers="dense1", rank=rank) for rank in (4, 8, 64) for batch in (1, 4, 16)),
]


def small_gpt(case: Network, seed: int) -> tuple[Model, Batch, Tensor]:
    """Return the network, the private sentences and the public ones of one batch."""
    torch.manual_seed(seed)
    network: nn.Module = gpt(
        vocabulary=VOCABULARY, positions=LENGTH, width=case.width, depth=case.depth, classes=CLASSES
    )
    if case.layers:
        network = adapt(network, rank=case.rank, layers=("query", *case.layers.split()))
    number = case.clients * case.batch
    x, public = sentences(number, 1000 + seed), sentences(PUBLIC, 2000 + seed)
    model = from_module(TokensFromNumbers(network), input_shape=(LENGTH,), example=x[:2])
    private = Batch(x[None], torch.randint(CLASSES, (1, number)), torch.ones(1, number, dtype=torch.bool))
    return model, private, public


def played(case: Network, seed: int, local: LocalTraining | None) -> list[float]:
    """Return the shares placed and wrong of one batch, then placed with honest weights and by the nearest public sentences."""
    model, private, public = small_gpt(case, seed)
    x, client = private.inputs[0], Client(aggregate=case.clients, local=local)
    trap = AdapterImprint() if case.layers else Decepticons()
    given = model, client, shared_weights(model, 1), private
    read = reconstruct(expose_manipulated(trap, *given, public, [seed]), trap, DEFAULT).inputs[0]
    honest = reconstruct(expose(*given, [seed]), trap, DEFAULT).inputs[0]
    nearest = (x[:, None] == public).double().mean(2).amax(1).mean()
    return [*placed(x, read), placed(x, honest)[0], float(nearest)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument(
        "--clients", type=int, nargs="*", default=[], help="clients in a sum, in place of sizes of batches"
    )
    parser.add_argument("--adapters", action="store_true")
    parser.add_argument("--epochs", type=int, help="of local training, in place of one gradient")
    parser.add_argument("--rate", type=float, default=0.1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "labels are drawn")  # no label is read
    local = LocalTraining(epochs=asked.epochs, rate=asked.rate) if asked.epochs else None
    columns = "trained", "width", "blocks", "sentences", "n", "tokens in place", "95 %", "wrong", "honest", "nearest"
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    kinds = [Network(4, layers=layers, rank=8) for layers in (("value", "dense1") if asked.adapters else ("",))]
    summed = [kind._replace(clients=clients) for kind in kinds for clients in asked.clients]
    cases = summed or (ADAPTED if asked.adapters else WHOLE)
    for case in cases:
        each = [played(case, seed, local) for seed in range(asked.batches)]
        rows = torch.tensor(each, dtype=torch.float64)
        found = estimate_mean(rows[:, :1], torch.ones(len(rows), 1, dtype=torch.bool), within=(0.0, 1.0))
        rest = " | ".join(f"{value:.3f}" for value in rows[:, 1:].mean(0).tolist())
        of = f"{case.clients} x {case.batch}" if case.clients > 1 else f"{case.batch}"
        trained = f"{case.layers}, rank {case.rank}" if case.layers else "all"
        print(
            f"| {trained} | {case.width} | {case.depth} | {of} | {len(rows)} | {found.value:.3f} | "
            f"{found.low:.3f} to {found.high:.3f} | {rest} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
