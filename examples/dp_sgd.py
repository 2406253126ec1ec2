"""DP-SGD against an attack, epsilon by epsilon: accuracy by Opacus, leak by leakscope, one table (docs/how-to/dp-sgd.md).

    pip install "leakscope[dp]"
    python examples/dp_sgd.py

Each client holds one bundled digit. In a round a tenth of the clients answer: each clips its gradient, adds its own noise and
sends the result; the server steps along the mean. The attacker is the server. It sees each client's update and knows the clipping
bound and the noise level.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakscope import (
    Batch,
    Client,
    Execution,
    PrivateClient,
    attacker_knowledge,
    aware,
    baselines,
    from_module,
    ig,
    load,
    make_batch,
    public_part,
    score,
    summarise,
)
from leakscope.integrations.opacus import multiplier_for
from leakscope.metrics import Estimate, Summary, estimate_rate

EPSILONS = (math.inf, 1e6, 1e5, 1e4, 1e3, 100.0, 30.0, 10.0, 1.0)
GROUPS = 10  # a tenth of the clients answers in a round
BOUND = 1.0  # the clipping bound
DELTA = 1e-4
RATES = (2.0, 0.5, 0.1)  # learning rates of the server; the best on the clients' own digits is kept
IMAGE = (1, 8, 8)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    epsilon: float
    multiplier: float
    accuracy: Estimate
    leak: Summary


def network(seed: int) -> nn.Sequential:
    """Return a small convolutional network for 8 x 8 digits."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


def train(multiplier: float, rate: float, rounds: int, seed: int) -> tuple[Estimate, Estimate]:
    """Return the accuracy on the clients' digits and on the test digits, after training with Opacus.

    m clients that each add noise of `multiplier * BOUND` add as much as one Opacus step on a batch of m with the noise multiplier
    `multiplier * sqrt(m)`. An epoch asks every client once, so each takes part in `rounds / GROUPS` rounds.
    """
    data, module = load("digits"), network(seed)
    x, y = data.pictures("train", slice(None)), torch.as_tensor(data.labels("train", slice(None)))
    clients = len(x) // GROUPS
    private, optimiser, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=rate),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=clients, shuffle=True, drop_last=True),
        noise_multiplier=multiplier * math.sqrt(clients),
        max_grad_norm=BOUND,
        poisson_sampling=False,
    )
    for _ in range(rounds // GROUPS):
        for inputs, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(private(inputs), labels).backward()
            optimiser.step()
    test = data.pictures("test", slice(None)), torch.as_tensor(data.labels("test", slice(None)))
    with torch.no_grad():
        right = [(module(pictures).argmax(1) == labels)[:, None] for pictures, labels in ((x, y), test)]
    own, others = (estimate_rate(each, torch.ones_like(each)) for each in right)
    return own, others


def private_digits(clients: int) -> Batch:
    """Return the digits of the attacked clients, one each."""
    data = load("digits")
    pictures, labels = data.pictures("train", range(clients)), torch.as_tensor(data.labels("train", range(clients)))
    return make_batch(pictures[:, None], labels[:, None], classes=data.classes)


def leak(multiplier: float, clients: int, iterations: int, seed: int) -> Summary:
    """Return what IG, which knows clip and noise, reads from each client's first update."""
    model, private = from_module(network(seed), input_shape=IMAGE), private_digits(clients)
    weights = {name: value.expand(clients, *value.shape) for name, value in model.parameters.items()}
    client, seeds = PrivateClient(bound=BOUND, multiplier=multiplier), list(range(clients))
    seen = client.observe(model, weights, private, seeds)
    knowledge = client.inform(attacker_knowledge(model, Client(), private), clients)
    attack = aware(ig(iterations=iterations), knowledge)
    made = attack.run(model, seen, knowledge, seeds, Execution(form="native"))
    scores = score(private.inputs, private.labels, made.inputs, made.labels)
    return summarise(scores, outcomes=made.outcome, iterations=made.iterations)


def measure(epsilon: float, *, rounds: int, clients: int, iterations: int, seed: int) -> Row:
    """Return accuracy and leak at this epsilon of one client over all rounds it takes part in."""
    multiplier = 0.0
    if epsilon < math.inf:
        steps = rounds // GROUPS
        multiplier = multiplier_for(target=epsilon, rate=1.0, steps=steps, delta=DELTA, accountant="rdp")
    trained = [train(multiplier, rate, rounds, seed) for rate in RATES]
    _, accuracy = max(trained, key=lambda pair: pair[0].value)
    return Row(epsilon, multiplier, accuracy, leak(multiplier, clients, iterations, seed))


def share(rate: Estimate | None) -> str:
    """Return a rate with its 95 % interval, in per cent."""
    return "n/a" if rate is None else f"{100 * rate.value:.0f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"


def line(row: Row) -> str:
    """Return a row as Markdown."""
    psnr = row.leak.means["psnr"]
    cells = (
        "no noise" if row.epsilon == math.inf else f"{row.epsilon:,.0f}",
        f"{row.multiplier:.2g}",
        share(row.accuracy),
        share(row.leak.content),
        share(row.leak.label),
        f"{psnr.value:.1f} [{psnr.low:.1f}, {psnr.high:.1f}]",
    )
    return f"| {' | '.join(cells)} |"


def print_baselines(clients: int) -> None:
    """Print what one gets without any update."""
    private, data = private_digits(clients), load("digits")
    for name, made in baselines(
        private, *public_part(data, "train"), classes=data.classes, seeds=list(range(clients))
    ).items():
        scores = score(private.inputs, private.labels, made.inputs, made.labels)
        summary = summarise(scores, outcomes=made.outcome, iterations=made.iterations)
        print(
            f"without the update, {name}: recovered {share(summary.content)}, PSNR {summary.means['psnr'].value:.1f} dB"
        )


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Print the table, a row at a time, and return its rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--rounds", type=int, default=60, help="a multiple of 10: a client takes part in every tenth")
    parser.add_argument("--clients", type=int, default=32, help="clients attacked")
    parser.add_argument("--iterations", type=int, default=300, help="iterations of the attack")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    for expected in ("Secure RNG", "Full backward hook"):  # Opacus says them in every experiment
        warnings.filterwarnings("ignore", message=expected)
    print(
        f"delta {DELTA:g}, clipping bound {BOUND:g}, n = {given.clients} clients attacked; 95 % intervals in brackets"
    )
    print("| epsilon | noise multiplier | test accuracy | images recovered | labels read | PSNR, dB |")
    print("|---|---|---|---|---|---|")
    rows = []
    for epsilon in given.epsilons:
        rows.append(
            measure(epsilon, rounds=given.rounds, clients=given.clients, iterations=given.iterations, seed=given.seed)
        )
        print(line(rows[-1]), flush=True)
    print_baselines(given.clients)
    return rows


if __name__ == "__main__":
    main()
