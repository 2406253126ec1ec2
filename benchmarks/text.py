"""What updates of a small GPT give away of its sentences: the span test and the bag of words, beside the most frequent tokens.

    python benchmarks/text.py [ROW ...] [--batches 3]
    python benchmarks/text.py --frontier FILE.json [--batches 3]
    python benchmarks/text.py gpt2-size-32 --device cuda

Every row is a client of a random-init GPT (width 128, 4 heads, 3 blocks, 2,000 words; `wide`: width 256) with sentences of 12 Zipf
tokens; each batch has weights and sentences of its own. `exact` is the share of sentences that came back whole (a language model's
without its last token, which has no gradient), with a 95 % interval over batches; `proved` is the share that the update also proves;
`false` counts sentences that are in no batch, `false proved` those of them that were called proved;
`pairs` is the recall of (token, position) pairs in the first span. `bag` says in how many batches the embedding's rows are exactly the
set of tokens. `null` is ROUGE-1 of the 12 most frequent words. `budget` is the most dimensions that the sent matrices can span.
Seconds are of one span test on one thread. `bert` rows are encoders. `--first` moves the seeds: limits were tuned on those from 0.
`--frontier` writes the exact share of adapters' clients after ten steps of SGD, rank by batch, which `tools/frontier_picture.py` draws.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.embedding_rows import bag_of_gradient
from leakscope.attacks.exact.span_test import SpanReading, span_test
from leakscope.core.tree import Tree
from leakscope.core.types import Round, Shares
from leakscope.metrics.interval import estimate_mean
from leakscope.metrics.text import score_text
from leakscope.models import adapt, bert, gpt

WORDS, LENGTH = 2000, 12


@dataclass(frozen=True)
class Row:
    batch: int
    width: int = 128
    dtype: torch.dtype = torch.float64
    language: bool = False  # a language-model loss, else a classifier's of two classes
    dropout: float = 0.0
    rank: int | None = None  # of adapters on queries and values; None: all weights are trained
    steps: int = 0  # local steps; 0: the gradient is sent
    rate: float = 0.1  # of SGD
    optimiser: str = "sgd"
    training: int = 0  # steps of Adam on other sentences before
    encoder: bool = False
    depth: int = 3
    words: int = WORDS
    length: int = LENGTH


ROWS = {
    **{f"gpt-{batch}": Row(batch) for batch in (1, 4, 8, 10)},
    **{f"float32-{batch}": Row(batch, dtype=torch.float32) for batch in (1, 4, 8)},
    "language-8": Row(8, language=True),
    "weights-8": Row(8, dtype=torch.float32, steps=1),
    "trained-8": Row(8, training=500),
    "trained-float32-8": Row(8, training=500, dtype=torch.float32),
    **{f"dropout-{batch}": Row(batch, dropout=0.1) for batch in (1, 2, 4, 6)},
    "dropout-4-float32": Row(4, dropout=0.1, dtype=torch.float32),
    "dropout20-4": Row(4, dropout=0.2),
    "dropout-language-4": Row(4, dropout=0.1, language=True),
    "dropout-bert-1": Row(1, dropout=0.1, encoder=True),
    **{f"bert-{batch}": Row(batch, encoder=True) for batch in (1, 2, 4)},
    "bert-float32-2": Row(2, encoder=True, dtype=torch.float32),
    "wide-16": Row(16, width=256),
    "gpt2-size-32": Row(32, width=768, depth=12, words=50_257, length=20),
    "lora-r8-first-gradient": Row(1, rank=8),
    "lora-r8-10-steps": Row(1, rank=8, steps=10),
    "lora-r4-10-steps": Row(1, rank=4, steps=10),
    "lora-r32-b4-10-steps": Row(4, rank=32, steps=10),
    "lora-r8-10-steps-float32": Row(1, rank=8, steps=10, dtype=torch.float32),
    "lora-r8-10-steps-float32-rate1": Row(1, rank=8, steps=10, dtype=torch.float32, rate=1.0),
    "lora-r8-adamw-5-steps": Row(1, rank=8, steps=5, optimiser="adamw"),
}


def sentences(row: Row, number: int, generator: torch.Generator) -> Tensor:
    """Return N x L tokens, the k-th with a chance of 1 / k."""
    chance = 1 / torch.arange(1, row.words + 1, device="cpu").double()
    tokens = torch.multinomial(chance, number * row.length, replacement=True, generator=generator)
    return tokens.reshape(number, row.length).to(torch.get_default_device())


def backward(module: nn.Module, x: Tensor) -> None:
    """Fill the gradients."""
    module.zero_grad()
    output = module(x)
    if output.ndim == 3:
        nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    else:
        nn.functional.cross_entropy(output, x[:, 0] % 2).backward()


def weights_of(module: nn.Module, *, trained: bool = False) -> Tree:
    """Return copies of the weights, or of those that are trained."""
    return {name: w.detach().clone() for name, w in module.named_parameters() if w.requires_grad or not trained}


def network(row: Row, generator: torch.Generator) -> nn.Module:
    """Return the network of one batch, trained before if the row says so."""
    module: nn.Module = (bert if row.encoder else gpt)(
        vocabulary=row.words,
        positions=row.length,
        width=row.width,
        heads=max(4, row.width // 64),
        depth=row.depth,
        classes=None if row.language else 2,
        dropout=row.dropout,
    )
    adam = torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(row.training):
        backward(module, sentences(row, 16, generator))
        adam.step()
    module = module.to(row.dtype)
    return module if row.rank is None else adapt(module, rank=row.rank)


def observe(row: Row, module: nn.Module, x: Tensor) -> tuple[Round, Shares]:
    """Return what the client sends: a gradient, or weights after local steps."""
    before = weights_of(module)
    if not row.steps:
        backward(module, x)
        return Round(
            before, {}, {name: w.grad for name, w in module.named_parameters() if w.grad is not None}
        ), Shares.GRADIENT
    trained = [w for w in module.parameters() if w.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=row.rate) if row.optimiser == "sgd" else torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(row.steps):
        backward(module, x)
        optimiser.step()
    return Round(before, {}, weights_of(module, trained=True)), Shares.WEIGHTS


def measure(row: Row, x: Tensor, seen: Round, reading: SpanReading) -> tuple[float, ...]:
    """Return the shares of exact sentences and pairs, false sentences, whether the bag is exact, ROUGE-1 of the null baseline, and the
    share of sentences and the number of false ones that are proved."""
    shown = x[:, :-1] if row.language else x
    scores = score_text(shown.tolist(), reading.sentences)
    true = {(p, token) for sentence in shown.tolist() for p, token in enumerate(sentence)}
    passed = {(p, token) for p, tokens in enumerate(reading.candidates) for token in tokens.tolist()}
    private, proved = {tuple(sentence) for sentence in shown.tolist()}, set(reading.proved)
    false = len(set(reading.sentences) - private)
    rows = seen.sent.get("embedding.weight")
    bag = float("nan")
    if rows is not None and not row.steps:
        bag = float(bag_of_gradient(rows).tokens.tolist() == shown.unique().tolist())
    null = score_text(shown.tolist(), [list(range(row.length))] * len(x))
    exact, right = float(scores.exact.double().mean()), len(proved & private) / len(private)
    return exact, len(true & passed) / len(true), false, bag, float(null.rouge1.mean()), right, len(proved - private)


def play(row: Row, number: int) -> tuple[tuple[float, ...], SpanReading, float]:
    """Return the scores of one batch, what was read, and the seconds of the span test."""
    torch.manual_seed(number)
    generator = torch.Generator("cpu").manual_seed(number)
    module, x = network(row, generator), sentences(row, row.batch, generator)
    seen, shares = observe(row, module, x)
    began = time.perf_counter()
    closest = row.batch if row.steps > 1 else None
    reading = span_test(module, seen, shares, vocabulary=row.words, length=row.length, closest=closest)
    seconds = time.perf_counter() - began
    with torch.device("cpu"):
        return measure(row, x, seen, reading), reading, seconds


def print_row(name: str, first: int, batches: int) -> None:
    """Print the table's line of a row."""
    row = ROWS[name]
    scores, readings, times = zip(*(play(row, first + number) for number in range(batches)), strict=True)
    exact, pairs, false, bag, null, proved, wrong = torch.tensor(scores, dtype=torch.float64, device="cpu").mT
    ranks = [reading.rank for reading in readings]
    interval = estimate_mean(exact[:, None], torch.ones(batches, 1, dtype=torch.bool, device="cpu"), within=(0.0, 1.0))
    right = "" if bool(bag.isnan().any()) else f"{int(bag.sum())} of {batches}"
    print(
        f"| {name} | {batches} | {row.batch * row.length} | {min(ranks)}-{max(ranks)} | {readings[0].budget} | "
        f"{interval.value:.2f} | {interval.low:.2f} to {interval.high:.2f} | {float(proved.mean()):.2f} | {int(false.sum())} | "
        f"{int(wrong.sum())} | {float(pairs.mean()):.2f} | {right} | {float(null.mean()):.2f} | {sum(times) / batches:.1f} |",
        flush=True,
    )


def frontier(first: int, batches: int) -> Iterator[dict[str, object]]:
    """Return the exact shares of adapters' clients after ten steps of SGD, a record for every rank and batch."""
    for rank in (2, 4, 6, 8, 12, 16, 24, 32):
        for batch in (1, 2, 4):
            row = Row(batch, rank=rank, steps=10)
            exact = [play(row, first + number)[0][0] for number in range(batches)]
            yield {"rank": rank, "budget": 2 * rank, "tokens": batch * row.length, "exact": exact}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", default=[name for name in ROWS if not name.startswith("gpt2")])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="seed of the first batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frontier", type=Path, help="write the frontier to this JSON file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_device(asked.device)
    if asked.frontier is not None:
        cells = []
        for cell in frontier(asked.first, asked.batches):
            cells.append(cell)
            print(cell, flush=True)
            asked.frontier.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
        return
    head = "row | n | tokens | rank | budget | exact | 95 % | proved | false | false proved | pairs | bag | null | s"
    print(f"| {head} |\n" + "|---" * 14 + "|")
    for name in asked.rows:
        print_row(name, asked.first, asked.batches)


if __name__ == "__main__":
    main()
