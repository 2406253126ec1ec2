"""How far off the estimates of `leakscope.analysis.inferring` are: many random clients of known settings.

    python benchmarks/inferring.py [clients of each kind and size]

Digits, 1, 4, 8 and 16 examples a client, and 64 in rows of their own, where the layers are too narrow to show N; fresh weights and
weights trained on other digits. The table is in docs/explanation/inference.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import torch
from torch import nn

from leakscope.analysis.inferring import infer
from leakscope.clients import Client
from leakscope.core.model import Model
from leakscope.core.tree import take
from leakscope.core.types import LocalTraining, Shares, make_batch
from leakscope.data import load
from leakscope.data.dataset import Dataset
from leakscope.defences import GaussianNoise
from leakscope.models import from_module

SIZES = (1, 4, 8, 16)
MANY = 64
CLIENTS = {
    "one gradient": Client(),
    "1 step": Client(LocalTraining(rate=0.1)),
    "4 steps": Client(LocalTraining(rate=0.1, epochs=4)),
    "16 steps": Client(LocalTraining(rate=0.1, epochs=16)),
    "4 steps, momentum 0.9": Client(LocalTraining(rate=0.1, epochs=4, momentum=0.9)),
    "4 steps, noise 0.001": Client(LocalTraining(rate=0.1, epochs=4), defences=(GaussianNoise(1e-3),)),
    "1 step of Adam": Client(LocalTraining(rate=0.001, optimiser="adam")),
    "4 steps of Adam": Client(LocalTraining(rate=0.001, optimiser="adam", epochs=4)),
}


@dataclass
class Tally:
    """What came of all clients of one kind."""

    right: int = 0
    silent: int = 0
    wrong: int = 0
    labels: int = 0
    mistaken: int = 0
    errors: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Return the numbers as cells of a table."""
        n = self.right + self.silent + self.wrong
        labels = f"{self.mistaken / self.labels:.1%}" if self.labels else "not known"
        rate = f"{sum(self.errors) / len(self.errors):.0%}" if self.errors else "not known"
        return f"{self.right} | {self.silent} | {self.wrong} | {labels} | {rate} | {n} |"


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))


def relu() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(128, 24),
        nn.Tanh(),
        nn.Linear(24, 10),
    )


def trained(module: nn.Module, data: Dataset) -> nn.Module:
    """Train on digits that no client holds."""
    x, y = data.pictures("test", slice(None)), torch.as_tensor(data.labels("test", slice(None)))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return module


def main(clients: int) -> None:
    data = load("digits")
    print(
        "| model | weights | client | N right | N not known | N wrong | labels wrong | rate x steps, mean error | n |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, make in (("dense", dense), ("relu", relu), ("conv", conv)):
        for weights in ("fresh", "trained"):
            torch.manual_seed(0)
            module = make() if weights == "fresh" else trained(make(), data)
            model = from_module(module, input_shape=(1, 8, 8))
            for kind, client in CLIENTS.items():
                tally = Tally()
                for size in SIZES:
                    count(tally, data, model, client, size, clients)
                print(f"| {name} | {weights} | {kind} | {tally.row()}", flush=True)
            for kind in ("one gradient", "4 steps"):
                tally = Tally()
                count(tally, data, model, CLIENTS[kind], MANY, clients)
                print(f"| {name} | {weights} | {kind}, {MANY} examples | {tally.row()}", flush=True)


def count(tally: Tally, data: Dataset, model: Model, client: Client, size: int, clients: int) -> None:
    """Infer from the updates of so many clients and compare with what they were."""
    index = torch.arange(clients * size) * 7 % data.size("train")
    x, y = data.pictures("train", index.numpy()), torch.as_tensor(data.labels("train", index.numpy()))
    batch = make_batch(x.unflatten(0, (clients, size)), y.unflatten(0, (clients, size)), classes=10)
    weights = {n: v.expand(clients, *v.shape) for n, v in model.parameters.items()}
    seen = client.observe(model, weights, batch, list(range(clients)))
    for t in range(clients):
        one = take(seen.rounds[0], t)
        made = infer(model, one.before, one.sent, shares=seen.shares)
        tally.right += made.samples.value == size
        tally.silent += made.samples.value is None
        tally.wrong += made.samples.value not in (None, size)
        counts = made.counts(size)
        if counts is not None:
            tally.labels += size
            tally.mistaken += int((counts - torch.bincount(batch.labels[t], minlength=10)).abs().sum()) // 2
        if seen.shares is Shares.WEIGHTS and client.local is not None and made.rate_times_steps.value is not None:
            true = client.local.rate * client.local.steps(size)
            tally.errors.append(abs(made.rate_times_steps.value / true - 1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
