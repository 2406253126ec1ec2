"""What defences leave of the sentences of a small GPT, read by the attacker who knows them.

    python benchmarks/text_defences.py [--clients 8] [--examples 4] [--adapters]
    python benchmarks/text_defences.py --private

The network is a random-init GPT (width 64, 3 blocks) that tells sonnets from Alice, on the first six words of bundled sentences; a client
sends one gradient of its sentences. With `--adapters` it sends low-rank adapters (rank 16 on queries and values) after five steps of SGD.
Rows are the remedies that an audit tries. `whole` is the share of sentences that came back whole with its 95 % interval over clients, `bag`
the share of the client's tokens among the embedding's rows that moved, beside that of as many frequent tokens. `null` is the best ROUGE-1
without the update. `--private` prints DP-SGD instead: one private gradient, its bound the median norm of the first gradients, with noise
multipliers from 0 (clipping alone) on; the attacker knows the noise.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import leakscope
from leakscope.auditing.tokens.audit import token_model
from leakscope.auditing.tokens.network import find_table, from_numbers, read_update
from leakscope.clients import Client, attacker_knowledge
from leakscope.clients.private import PrivateClient
from leakscope.core.tree import lift, norm, take
from leakscope.core.types import Batch, LocalTraining, direction
from leakscope.data import load_text
from leakscope.models import adapt, gpt
from leakscope.play.exposure import shared_weights
from leakscope.play.text_leak import TextLeak, score_readings

LENGTH, WIDTH, RANK = 6, 64, 16
MULTIPLIERS = (0.0, 0.001, 0.01, 0.1, 1.0)


def row(name: str, grade: str, leak: TextLeak) -> str:
    """Return a row of the table."""
    whole, bag = leak.sentences, leak.bag
    moved = "not sent | " if bag is None else f"{bag.value:.2f} | {leak.null_bag:.2f}"
    return (
        f"| {name} | {whole.n} | {leak.tokens} | {whole.value:.2f} | {whole.low:.2f} to {whole.high:.2f} | {leak.rouge1.value:.2f} | "
        f"{leak.rouge2.value:.2f} | {leak.null_rouge1:.2f} | {moved} | {grade} |"
    )


def private_leak(
    network: torch.nn.Module, tokens: Tensor, labels: Tensor, multiplier: float, *, clients: int, examples: int
) -> TextLeak:
    """Return what the exact attacks read off private gradients; the first sentences are the clients', the others public."""
    held, module = clients * examples, from_numbers(network)
    model, table = token_model(module, tokens), find_table(module, tokens, None)
    mine, classes = tokens[:held].reshape(clients, examples, LENGTH), labels[:held].reshape(clients, examples)
    batch = Batch(mine.float(), classes, torch.ones(classes.shape, dtype=torch.bool))
    weights, seeds = shared_weights(model, clients), list(range(clients))
    plain = Client().observe(model, weights, batch, seeds)
    client = PrivateClient(
        bound=float(lift(norm)(direction(plain.rounds[0], plain.shares)).median()), multiplier=multiplier
    )
    seen = client.observe(model, weights, batch, seeds)
    known = client.inform(attacker_knowledge(model, Client(), batch), clients)
    readings = [read_update(module, table, take(seen, t), take(known, t), LENGTH, None) for t in range(clients)]
    return score_readings(mine, readings, tokens, tokens[held:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--adapters", action="store_true")
    parser.add_argument("--private", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens, labels, words = load_text().tokens(LENGTH)
    network: torch.nn.Module = gpt(vocabulary=len(words), positions=LENGTH, width=WIDTH, classes=2)
    client = None
    head = "| remedy | n | tokens | whole | 95 % | ROUGE-1 | -2 | null | bag | frequent | grade |\n" + "|---" * 11 + "|"
    if asked.private:
        print(head)
        for multiplier in MULTIPLIERS:
            leak = private_leak(network, tokens, labels, multiplier, clients=asked.clients, examples=asked.examples)
            print(row(f"DP-SGD, multiplier {multiplier:g}", "", leak))
        return
    if asked.adapters:
        network, client = adapt(network, rank=RANK), LocalTraining(epochs=5, rate=0.3)
    audit = leakscope.audit(
        network, "cross_entropy", tokens, labels, client=client, examples=asked.examples, clients=asked.clients,
        minutes=10, words=words.words, progress=False,
    )  # fmt: skip
    print(head)
    if audit.text is not None:
        print(row("none", audit.grade, audit.text))
    for remedy in audit.text_remedies:
        print(row(remedy.name, str(remedy.grade), remedy.leak) if remedy.leak else f"| {remedy.words} |")


if __name__ == "__main__":
    main()
