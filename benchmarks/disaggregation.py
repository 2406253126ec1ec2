"""Updates of single clients from secure sums over rounds, and the images that division reads from them beside a sum.

    LEAKSCOPE_DATA=... python benchmarks/disaggregation.py [--clients 5 10] [--rounds 2] [--rate 0 0.01 0.1] [--trials 10]

Every client holds 4 test images of Fashion-MNIST and sends the gradient of 784-200-10 (torch's first weights, new in each trial). The
server sees the sums over the clients that took part (each with probability 1/2), sets the weights by FedSGD at `rate` (0: they stay), and
knows how often each client took part in every 4 rounds. `rounds` is a multiple of the clients. `right` is the share of clients whose
rounds are found and called the only answer; `wrong` counts clients that are so called falsely. `single` is the share of images within
0.05 (root mean square) by division of the updates of single clients (0 where there are none), `sum` by division of the sum of each
round, the best round counted, and `public` that of the nearest of 2,000 other images. A program that does not end within 10 s settles
nothing: a busy machine finds fewer. Intervals: Student's t over trials.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.exact.disaggregation import as_update, disaggregate
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import Tree, rows, take
from leakscope.core.types import Batch, Knowledge, Observation, Round, Shares, make_batch
from leakscope.data import load
from leakscope.metrics.interval import estimate_mean
from leakscope.models import Torch, build, draw_parameters

EACH, WINDOW, NEAR, PUBLIC = 4, 4, 0.05, 2_000


def near(guesses: Tensor, truth: Tensor) -> Tensor:
    """Return which true images have a guess within NEAR."""
    return squared_distances(truth.double(), guesses.double()).sqrt().amin(1) <= NEAR


def divided(model: Model, before: Tree, update: Tree, samples: int, knowledge: Knowledge) -> Tensor:
    """Return the images that division reads from one update."""
    seen = Observation((Round(before, {}, update),), Shares.GRADIENT, torch.tensor([float(samples)]))
    return Analytic().run(model, seen, knowledge, [0]).inputs[0]


def federation(clients: int, rounds: int, rate: float, trial: int) -> tuple[float, float, float, float, float]:
    """Return the shares right, read from single clients, from sums and from public images, then the clients called right falsely."""
    data = load("fashion_mnist")
    model = build("mlp", data.input_shape, data.classes, {"hidden": (200,)})
    index = [place % data.size("test") for place in range(trial * clients * EACH, (trial + 1) * clients * EACH)]
    images, labels = data.pictures("test", index), data.labels("test", index)

    def held(by: Tensor) -> Batch:  # clients as trials
        x, y = images.unflatten(0, (clients, EACH))[by], labels.unflatten(0, (clients, EACH))[by]
        return make_batch(x, y, classes=data.classes)

    def knows(number: int) -> Knowledge:
        x, y = images[None, : number * EACH], labels[None, : number * EACH]
        return attacker_knowledge(model, Client(), make_batch(x, y, classes=data.classes))

    drawn = random.uniform(random.key([trial]), (rounds, clients), torch.float64)[0]
    took_part = (drawn < 0.5) | (drawn == drawn.amin(1, keepdim=True))
    weights = first = draw_parameters(model, Torch(), random.key([trial]))
    sums, read = [], torch.zeros(len(images), dtype=torch.bool)
    best = read
    for present in took_part:
        who = present.nonzero()[:, 0]
        same = {name: value.expand(len(who), *value.shape[1:]) for name, value in weights.items()}
        gradients = Client().observe(model, same, held(who), who.tolist()).rounds[0].sent
        mean = {name: value.mean(0, keepdim=True) for name, value in gradients.items()}
        sums.append(EACH * len(who) * torch.cat([rows(value)[0] for value in mean.values()]).double())
        seen = near(divided(model, weights, mean, EACH * len(who), knows(len(who))), images)
        best = seen if int(seen.sum()) > int(best.sum()) else best
        weights = {name: value - rate * mean[name] for name, value in weights.items()}
    counts = torch.stack([part.sum(0) for part in took_part.split(WINDOW)], 1)
    found = disaggregate(torch.stack(sums), counts, window=WINDOW)
    agree = (found.participation == took_part).all(0)
    if found.updates is not None:
        for each, update in enumerate(found.updates):
            guess = divided(model, first, as_update(update / EACH, take(gradients, slice(0, 1))), EACH, knows(1))
            own = slice(each * EACH, (each + 1) * EACH)
            read[own] = near(guess, images[own])
    public = near(data.pictures("train", range(PUBLIC)), images)
    shares = [float(each.double().mean()) for each in (agree & found.unique, read, best, public)]
    return shares[0], shares[1], shares[2], shares[3], float((found.unique & ~agree).sum())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[5, 10])
    parser.add_argument("--rounds", type=int, nargs="*", default=[2])
    parser.add_argument("--rate", type=float, nargs="*", default=[0.0, 0.01, 0.1])
    parser.add_argument("--trials", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"n = {asked.trials} federations\n")
    print("| clients | rounds | rate | right | wrong | single | sum | public |\n|---|---|---|---|---|---|---|---|")
    cases = [(K, times * K, rate) for K in asked.clients for times in asked.rounds for rate in asked.rate]
    for clients, rounds, rate in cases:
        values = torch.tensor(
            [federation(clients, rounds, rate, trial) for trial in range(asked.trials)], dtype=torch.float64
        )
        means = [
            estimate_mean(each[:, None], torch.ones_like(each[:, None], dtype=torch.bool), within=(0.0, 1.0))
            for each in values[:, :4].T
        ]
        right, single, summed, public = (f"{each.value:.2f} ({each.low:.2f} to {each.high:.2f})" for each in means)
        wrong = int(values[:, 4].sum())
        print(f"| {clients} | {rounds} | {rate:g} | {right} | {wrong} | {single} | {summed} | {public} |", flush=True)


if __name__ == "__main__":
    main()
