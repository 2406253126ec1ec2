"""What a guard costs: its seconds beside those of the client's training, for clients of the Flower example's two networks.

python benchmarks/guard.py --rounds 40 --epochs 1 --examples 1 64 1280

A client of 1 example trains the small network; those of more examples train a ResNet20 of width 8 in batches of 64, all on
the bundled digits. The guard is that of the example, after `warm_up`. CPU seconds of one thread: of the rounds in which the matching
attack ran and of those in which it rested (median, smallest to largest), and the guard's share of each kind and of all rounds together.

python benchmarks/guard.py --evaluations 10 20 50 100 200 500 --clients 4

Prints after how many evaluations each matching attack reads the gradient of a small network back, for ReLU and Tanh and clients of 1, 4
and 8 examples: the first limit at which the guard sees a leak, one number a client.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from torch import Tensor, nn

from leakscope import GuardHistory, GuardSettings, LocalTraining, Target, guard
from leakscope.data import load
from leakscope.guarding.guard import Guarded, warm_up
from leakscope.models.resnet import resnet20

RATE, BATCH = 0.1, 64
SIZES = (1, 4, 8)  # examples of a client, with --evaluations
SETTINGS = GuardSettings(seconds=600, share=0.1, guesses=2, evaluations=25, attacks=("cpl",))


def small(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    layers = nn.Conv2d(1, 8, 3, padding=1), activation(), nn.Conv2d(8, 8, 3, stride=2, padding=1), activation()
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


def measure(
    net: nn.Module, examples: int, epochs: int, history: GuardHistory
) -> tuple[float, float, Guarded, GuardHistory]:
    """Return the seconds of a round's training and of its guard, the result, and the history after it."""
    data = load("digits")
    x, y = data.pictures("train", range(examples)), torch.as_tensor(data.labels("train", range(examples)))
    began, wall = time.process_time(), time.monotonic()
    sent = train(net, x, y, epochs)
    trained, history = time.process_time(), history.trained(time.monotonic() - wall)
    target = Target(model=net, inputs=x, labels=y, client=LocalTraining(epochs=epochs, batch_size=BATCH, rate=RATE))
    result = guard(target, sent, settings=SETTINGS, history=history)
    seconds = time.process_time() - trained
    assert result.history is not None
    return trained - began, seconds, result, result.history


def show(kind: str, rounds: list[tuple[float, float]]) -> str:
    """Return the costs of some rounds in words."""
    if not rounds:
        return f"  {kind}: none"
    shares = [cost / (cost + training) for training, cost in rounds]
    training, cost = (statistics.median(each) for each in zip(*rounds, strict=True))
    spread = f"{min(shares):.1%} to {max(shares):.1%}"
    return f"  {kind}: training {training:.3f} s, guard {cost:.4f} s, share {statistics.median(shares):.1%} ({spread}), n = {len(rounds)}"


def first_leak(activation: type[nn.Module], examples: int, client: int, attack: str, limits: list[int]) -> str:
    """Return the first limit of evaluations at which the guard sees a leak of a client."""
    torch.manual_seed(client)
    net, data = small(activation), load("digits")
    chosen = range(client * 10, client * 10 + examples)
    x, y = data.pictures("train", chosen), torch.as_tensor(data.labels("train", chosen))
    gradients = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(net.parameters()))
    sent = dict(zip((name for name, _ in net.named_parameters()), gradients, strict=True))
    for limit in limits:
        settings = GuardSettings(evaluations=limit, least_evaluations=1, seconds=600, attacks=(attack,))
        result = guard(Target(model=net, inputs=x, labels=y), sent, settings=settings)
        if any(check.name == attack and check.recovered for check in result.checks):
            return str(limit)
    return f"over {limits[-1]}"


def show_evaluations(limits: list[int], clients: int) -> None:
    """Print the table of `first_leak`."""
    print("| activation | examples | attack | n | first leak at |\n|---|---|---|---|---|")
    for activation in (nn.ReLU, nn.Tanh):
        for examples in SIZES:
            for attack in ("cpl", "ig"):
                seen = [first_leak(activation, examples, client, attack, limits) for client in range(clients)]
                row = activation.__name__, examples, attack, clients, ", ".join(seen)
                print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1])
    parser.add_argument("--examples", type=int, nargs="+", default=[1, 64, 1280])
    parser.add_argument("--evaluations", type=int, nargs="+")
    parser.add_argument("--clients", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.evaluations:
        show_evaluations(sorted(asked.evaluations), asked.clients)
        return
    warm_up()
    for examples in asked.examples:
        for epochs in asked.epochs:
            torch.manual_seed(0)
            net = small() if examples == 1 else resnet20(input_shape=(1, 8, 8), width=8).train()
            history = GuardHistory()
            attacked, rested, decisions = [], [], set()
            for _ in range(asked.rounds):
                training, cost, result, history = measure(net, examples, epochs, history)
                ran = any(check.evaluations is not None for check in result.checks)
                (attacked if ran else rested).append((training, cost))
                decisions.add(result.decision.value)
            print(f"{examples} examples, {epochs} epochs: {', '.join(sorted(decisions))}")
            print(show("attacked", attacked))
            print(show("rested", rested))
            training, cost = (sum(each) for each in zip(*attacked, *rested, strict=True))
            print(f"  all {asked.rounds} rounds: share {cost / (cost + training):.1%}", flush=True)


if __name__ == "__main__":
    main()
