"""What TAG and LAMP recover of the sentences of a small BERT classifier, beside attackers who only know which tokens occur.

    python benchmarks/text_matching.py [--clients 8] [--batches 1,2,4] [--lengths 8,16] [--rows frequent,bag,tag,lamp,lamp-whole]

Networks: BERT of width 32, 2 heads, 2 blocks, 200 words, two classes, random weights of their own for each client. Sentences come from
a grammar: each word has six followers, chosen with chances 1, 1/2, ... The language model of LAMP is a small GPT that was trained on
4,000 other sentences of the grammar. Labels are known. The embedding's rows tell all attackers which tokens occur. `frequent` guesses
the most frequent words of public text, `bag` the words that occur in random order. Scores are means over clients, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.exact.embedding_rows import bag_of_gradient
from leakscope.attacks.tokens.token_attacks import lamp, tag
from leakscope.core.types import Knowledge, Observation, Round, Shares
from leakscope.metrics.interval import estimate_mean
from leakscope.metrics.text import score_text
from leakscope.models import bert, from_module, gpt

WORDS, FOLLOWERS = 200, 6


def sentences(number: int, length: int, generator: torch.Generator) -> Tensor:
    """Return N x L words of the grammar."""
    followers = torch.randint(WORDS, (WORDS, FOLLOWERS), generator=torch.Generator().manual_seed(7))
    words = [torch.randint(WORDS, (number,), generator=generator)]
    chance = 1 / torch.arange(1, FOLLOWERS + 1).double()
    for _ in range(length - 1):
        chosen = torch.multinomial(chance, number, replacement=True, generator=generator)
        words.append(followers[words[-1], chosen])
    return torch.stack(words, dim=1)


def language_model(length: int) -> Callable[[Tensor], Tensor]:
    """Return the log-likelihood of sentences under a GPT trained on public ones."""
    torch.manual_seed(0)
    module = gpt(vocabulary=WORDS, positions=length, width=64, depth=2)
    adam, generator = torch.optim.Adam(module.parameters(), lr=3e-3), torch.Generator().manual_seed(1)
    public = sentences(4000, length, generator)

    def each(x: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(module(x)[:, :-1].mT, x[:, 1:], reduction="none")
        return -losses.sum(1)

    for _ in range(200):
        adam.zero_grad()
        (-each(public[torch.randint(len(public), (64,), generator=generator)]).mean()).backward()
        adam.step()
    return torch.no_grad()(each)


def observe(x: Tensor, labels: Tensor) -> tuple[nn.Module, Observation]:
    """Return the network and what T clients send: the gradient, each from weights of its own."""
    befores, sents = [], []
    for number in range(len(x)):
        torch.manual_seed(number)
        module = bert(vocabulary=WORDS, positions=x.shape[2], width=32, heads=2, depth=2, classes=2)
        nn.functional.cross_entropy(module(x[number]), labels[number]).backward()
        befores.append({name: w.detach() for name, w in module.named_parameters()})
        sents.append({name: w.grad for name, w in module.named_parameters() if w.grad is not None})
    before, sent = (
        {name: torch.stack([each[name] for each in all_of]) for name in all_of[0]} for all_of in (befores, sents)
    )
    return module, Observation((Round(before, {}, sent),), Shares.GRADIENT, torch.full((len(x),), x.shape[1]))


def nulls(x: Tensor, seen: Observation, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the guesses of attackers who match nothing."""
    public = sentences(4000, x.shape[2], generator)
    frequent = torch.tensor([word for word, _ in Counter(public.flatten().tolist()).most_common(x.shape[2])])
    bags = [bag_of_gradient(rows).tokens for rows in seen.rounds[0].sent["embedding.weight"]]
    drawn = [
        bag[torch.arange(x[0].numel()) % len(bag)][torch.randperm(x[0].numel(), generator=generator)] for bag in bags
    ]
    return {"frequent": frequent.expand_as(x), "bag": torch.stack(drawn).reshape(x.shape)}


def line(row: str, x: Tensor, guess: Tensor, seconds: float) -> str:
    """Return a line of the table."""
    scores = [score_text(a, b) for a, b in zip(x.tolist(), guess.long().tolist(), strict=True)]
    cells = []
    for values in ([s.rouge1 for s in scores], [s.rouge2 for s in scores], [s.rouge_l for s in scores]):
        made = torch.stack(values)
        rate = estimate_mean(made, torch.ones_like(made).bool(), within=(0.0, 1.0))
        cells.append(f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})")
    exact = int(torch.cat([s.exact for s in scores]).sum())
    total = x.shape[0] * x.shape[1]
    return (
        f"| {x.shape[1]} | {x.shape[2]} | {row} | {len(x)} | {' | '.join(cells)} | {exact} of {total} | {seconds:.0f} |"
    )


def short_lamp(likelihood: Callable[[Tensor], Tensor], iterations: int, *, whole: int) -> Attack:
    """Return LAMP with few iterations and moves."""
    return lamp(likelihood=likelihood, iterations=iterations, every=40, tries=40, starts=40, whole=whole)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--batches", default="1,2,4")
    parser.add_argument("--lengths", default="8,16")
    parser.add_argument("--rows", default="frequent,bag,tag,lamp")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the sentences")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| batch | length | attack | n | ROUGE-1 | ROUGE-2 | ROUGE-L | exact | s |\n" + "|---" * 9 + "|", flush=True)
    for length in map(int, asked.lengths.split(",")):
        likelihood = language_model(length)
        attacks: dict[str, Attack] = {
            "tag": tag(iterations=asked.iterations),
            "lamp": short_lamp(likelihood, asked.iterations, whole=0),
            "lamp-whole": short_lamp(likelihood, asked.iterations, whole=200),
        }
        for batch in map(int, asked.batches.split(",")):
            generator = torch.Generator().manual_seed(1000 * asked.first + 100 * batch + length)
            x = sentences(asked.clients * batch, length, generator).reshape(asked.clients, batch, length)
            labels = torch.arange(batch).remainder(2).expand(asked.clients, batch)
            module, seen = observe(x, labels)
            guesses = nulls(x, seen, generator)
            model = from_module(module, input_shape=(length,), example=x[0])
            knowledge = Knowledge((length,), 2, batch, labels=labels)
            for name in asked.rows.split(","):
                if name in guesses:
                    print(line(name, x, guesses[name], 0), flush=True)
                    continue
                began = time.perf_counter()
                made = attacks[name].run(model, seen, knowledge, list(range(asked.clients)), Execution(form="native"))
                print(line(name, x, made.inputs, time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
