"""What defences leave of the sentences of a small GPT, read by the attacker who knows them.

    python benchmarks/text_defences.py [--clients 8] [--examples 4] [--adapters]

The network is a random-init GPT (width 64, 3 blocks) that tells sonnets from Alice, on the first six words of bundled sentences; a client
sends one gradient of its sentences. With `--adapters` it sends low-rank adapters (rank 16 on queries and values) after five steps of SGD.
Rows are the remedies that an audit tries. `whole` is the share of sentences that came back whole with its 95 % interval over clients, `bag`
the share of the client's tokens among the embedding's rows that moved, beside that of as many frequent tokens. `null` is the best ROUGE-1
without the update.
"""

from __future__ import annotations

import argparse

import torch

import leakscope
from leakscope.core.types import LocalTraining
from leakscope.data import load_text
from leakscope.models import adapt, gpt
from leakscope.play.text_leak import TextLeak

LENGTH, WIDTH, RANK = 6, 64, 16


def row(name: str, grade: str, leak: TextLeak) -> str:
    """Return a row of the table."""
    whole, bag = leak.sentences, leak.bag
    moved = "not sent | " if bag is None else f"{bag.value:.2f} | {leak.null_bag:.2f}"
    return (
        f"| {name} | {whole.n} | {leak.tokens} | {whole.value:.2f} | {whole.low:.2f} to {whole.high:.2f} | {leak.rouge1.value:.2f} | "
        f"{leak.rouge2.value:.2f} | {leak.null_rouge1:.2f} | {moved} | {grade} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--adapters", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens, labels, words = load_text().tokens(LENGTH)
    network: torch.nn.Module = gpt(vocabulary=len(words), positions=LENGTH, width=WIDTH, classes=2)
    client = None
    if asked.adapters:
        network, client = adapt(network, rank=RANK), LocalTraining(epochs=5, rate=0.3)
    audit = leakscope.audit(
        network, "cross_entropy", tokens, labels, client=client, examples=asked.examples, clients=asked.clients,
        minutes=10, words=words.words, progress=False,
    )  # fmt: skip
    print("| remedy | n | tokens | whole | 95 % | ROUGE-1 | -2 | null | bag | frequent | grade |\n" + "|---" * 11 + "|")
    if audit.text is not None:
        print(row("none", audit.grade, audit.text))
    for remedy in audit.text_remedies:
        print(row(remedy.name, str(remedy.grade), remedy.leak) if remedy.leak else f"| {remedy.words} |")


if __name__ == "__main__":
    main()
