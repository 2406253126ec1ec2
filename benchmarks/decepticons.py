"""Decepticons on a small GPT: the share of tokens that come back in their sentences and places, and of read ones that are wrong.

    python benchmarks/decepticons.py [--batches 10] [--clients 1 2 5 20 100]

GPT-2 in small (2,000 tokens, 12 places, 3 blocks, 4 heads), a classifier of 4 classes, sentences of Zipf tokens, 1,000 public
ones; every batch has weights, server draws and sentences of its own. `honest` is the same reader on weights that were not manipulated,
`nearest` the nearest public sentence, chosen with the truth. With `--clients` the update is the mean of so many clients of 4 sentences each
(width 128). With a rank, only adapters of that rank on queries, values and `dense1` are trained. Intervals: Student's t over batches.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import DEFAULT
from leakscope.clients import Client
from leakscope.core.model import Model
from leakscope.core.pairing import pair
from leakscope.core.types import Batch
from leakscope.metrics.interval import estimate_mean
from leakscope.models import adapt, from_module, gpt
from leakscope.models.token_model import TokensFromNumbers
from leakscope.play import expose, reconstruct, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.decepticons import UNREAD, Decepticons

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


def small_gpt(width: int, batch: int, seed: int, rank: int | None = None) -> tuple[Model, Batch, Tensor]:
    """Return the network, the private sentences and the public ones of one batch."""
    torch.manual_seed(seed)
    network: nn.Module = gpt(vocabulary=VOCABULARY, positions=LENGTH, width=width, depth=3, classes=CLASSES)
    if rank is not None:
        network = adapt(network, rank=rank, layers=("query", "value", "dense1"))
    x, public = sentences(batch, 1000 + seed), sentences(PUBLIC, 2000 + seed)
    model = from_module(TokensFromNumbers(network), input_shape=(LENGTH,), example=x[:2])
    private = Batch(x[None], torch.randint(CLASSES, (1, batch)), torch.ones(1, batch, dtype=torch.bool))
    return model, private, public


def played(width: int, batch: int, seed: int, clients: int, rank: int | None) -> list[float]:
    """Return the shares placed and wrong of one batch, then placed with honest weights and by the nearest public sentences."""
    model, private, public = small_gpt(width, clients * batch, seed, rank)
    x, trap, given = (
        private.inputs[0],
        Decepticons(),
        (model, Client(aggregate=clients), shared_weights(model, 1), private),
    )
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
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| width | rank | sentences | n | tokens in place | 95 % | wrong | honest | nearest |")
    print("|---" * 9 + "|")
    whole: list[tuple[int, int, int, int | None]] = [
        (64, 4, 1, None),
        (128, 4, 1, None),
        (128, 8, 1, None),
        (128, 16, 1, None),
    ]
    adapted: list[tuple[int, int, int, int | None]] = [
        (128, 1, 1, 8),
        (128, 1, 1, 16),
        (128, 4, 1, 16),
        (128, 4, 1, 64),
        (128, 16, 1, 64),
    ]
    sizes = [(128, 4, clients, None) for clients in asked.clients] or whole + adapted
    for width, batch, clients, rank in sizes:
        each = [played(width, batch, seed, clients, rank) for seed in range(asked.batches)]
        rows = torch.tensor(each, dtype=torch.float64)
        found = estimate_mean(rows[:, :1], torch.ones(len(rows), 1, dtype=torch.bool), within=(0.0, 1.0))
        rest = " | ".join(f"{value:.3f}" for value in rows[:, 1:].mean(0).tolist())
        of = f"{clients} x {batch}" if clients > 1 else f"{batch}"
        print(
            f"| {width} | {rank or '-'} | {of} | {len(rows)} | {found.value:.3f} | {found.low:.3f} to {found.high:.3f} | {rest} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
