"""What a guard costs: its seconds beside those of the client's training, for clients of the Flower example's two networks.

python benchmarks/guard.py --repeats 3 --epochs 1 15

A client of 1 example trains the small network; one of 64 and one of 1,280 examples train a ResNet20 of width 8 in batches of 64, all on
the bundled digits. CPU time of one thread; median, smallest and largest over the repeats. The guard is that of the example, after
`warm_up`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from torch import Tensor, nn

from leakscope import GuardSettings, LocalTraining, Target, guard
from leakscope.auditing.guarding import warm_up
from leakscope.data import load
from leakscope.models.resnet import resnet20

RATE, BATCH = 0.1, 64
SETTINGS = GuardSettings(seconds=600, guesses=2, evaluations=25, attacks=("cpl",))


def small() -> nn.Module:
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Tanh()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> dict[str, Tensor]:
    after = copy.deepcopy(net)
    optimiser = torch.optim.SGD(after.parameters(), lr=RATE)
    for _ in range(epochs):
        for part in torch.arange(len(x)).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(after(x[part]), y[part]).backward()
            optimiser.step()
    return after.state_dict()


def measure(net: nn.Module, examples: int, epochs: int) -> tuple[float, float, str]:
    """Return the seconds of the training and of the guard, and the decision."""
    data = load("digits")
    x, y = data.pictures("train", range(examples)), torch.as_tensor(data.labels("train", range(examples)))
    began = time.process_time()
    sent = train(net, x, y, epochs)
    trained = time.process_time()
    target = Target(model=net, inputs=x, labels=y, client=LocalTraining(epochs=epochs, batch_size=BATCH, rate=RATE))
    decision = guard(target, sent, settings=SETTINGS).decision
    return trained - began, time.process_time() - trained, decision.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, nargs="+", default=[5, 20, 100])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    for name, examples in (("small", 1), ("resnet20", 64), ("resnet20", 1280)):
        for epochs in asked.epochs:
            torch.manual_seed(0)
            net = small() if name == "small" else resnet20(input_shape=(1, 8, 8), width=8).train()
            runs = [measure(net, examples, epochs) for _ in range(asked.repeats)]
            shares = [cost / (cost + training) for training, cost, _ in runs]
            print(
                f"{name}, {examples} examples, {epochs} epochs: {runs[0][2]}; training {statistics.median(r[0] for r in runs):.2f} s, "
                f"guard {statistics.median(r[1] for r in runs):.2f} s, share of the round {statistics.median(shares):.1%} "
                f"({min(shares):.1%} to {max(shares):.1%}), n = {len(runs)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
