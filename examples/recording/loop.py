"""A hand-written federated loop that records what every client sends.

python loop.py captures
leakscope audit captures --model loop:build
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import Tensor, nn

from leakscope import LocalTraining, Target, capture, load

CLIENTS, EXAMPLES, ROUNDS = 4, 8, 10
TRAINING = LocalTraining(rate=0.5, epochs=1)  # one step on all examples a round


def build_network() -> nn.Module:
    """Return a small network for 8 x 8 images of ten digits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 8 * 8, 32), nn.Tanh(), nn.Linear(32, 10)
    )


def private_digits(client: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one client."""
    data, chosen = load("digits"), slice(client * EXAMPLES, (client + 1) * EXAMPLES)
    return data.pictures("train", chosen), torch.as_tensor(data.labels("train", chosen))


def train(network: nn.Module, client: int) -> None:
    """Train in place on the digits of one client."""
    images, labels = private_digits(client)
    optimiser = torch.optim.SGD(network.parameters(), lr=TRAINING.rate)
    for _ in range(TRAINING.epochs):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimiser.step()


def record(before: nn.Module, after: nn.Module, *, directory: str, number: int, client: int) -> None:
    """Write what the server saw of one client in one round."""
    config = {"lr": TRAINING.rate, "epochs": TRAINING.epochs}
    capture(
        before,
        after,
        directory=directory,
        round=number,
        client=client,
        partition=client,
        samples=EXAMPLES,
        config=config,
    )


def average(networks: list[nn.Module]) -> dict[str, Tensor]:
    """Return the mean of the clients' weights."""
    states = [network.state_dict() for network in networks]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def mean_loss(network: nn.Module) -> float:
    """Return the loss over the digits of all clients."""
    with torch.no_grad():
        pairs = [private_digits(client) for client in range(CLIENTS)]
        return sum(float(nn.functional.cross_entropy(network(x), y)) for x, y in pairs) / CLIENTS


def build() -> Target:
    """Return what an audit of the captures needs to know; `truth` is known because this is an example."""
    images, labels = private_digits(0)
    return Target(model=build_network(), inputs=images, labels=labels, client=TRAINING, truth=private_digits)


def main(directory: str) -> None:
    """Train for some rounds and record every client in each."""
    server = build_network()
    for number in range(1, ROUNDS + 1):
        clients = [copy.deepcopy(server) for _ in range(CLIENTS)]
        for client, network in enumerate(clients):
            train(network, client)
            record(server, network, directory=directory, number=number, client=client)
        server.load_state_dict(average(clients))
    print(f"loss {mean_loss(build_network()):.2f} before, {mean_loss(server):.2f} after {ROUNDS} rounds")


if __name__ == "__main__":
    main((sys.argv[1:] or ["captures"])[0])
