"""The task: bundled 8 x 8 digits, a small network, local training, and what an audit needs to know of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.data import load
from leakscope.models import MODELS

CLIENTS = 4
EXAMPLES, BATCH_SIZE, RATE = 8, 8, 0.4  # of a client; the same as in pyproject.toml


class Net(nn.Module):
    """Two convolutions and a dense layer for 8 x 8 grey pictures of ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ten logits for each picture."""
        return self.layers(x)


def network(name: str) -> nn.Module:
    """Return the network that the run's settings name."""
    return MODELS["resnet20"](input_shape=(1, 8, 8), width=8) if name == "resnet" else Net()


def private_digits(partition: int, examples: int) -> tuple[Tensor, Tensor]:
    """Return the digits of one client: every CLIENTS-th of the training part."""
    data = load("digits")
    chosen = range(partition % CLIENTS, CLIENTS * examples, CLIENTS)
    return data.pictures("train", chosen), torch.as_tensor(data.labels("train", chosen))


def test_digits() -> tuple[Tensor, Tensor]:
    """Return the test part."""
    data = load("digits")
    return data.pictures("test", slice(None)), torch.as_tensor(data.labels("test", slice(None)))


def train(net: nn.Module, x: Tensor, y: Tensor, *, epochs: int, batch_size: int, rate: float, seed: int) -> float:
    """Train in place with plain SGD; return the last loss."""
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    net.train()
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=order).split(batch_size):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x[chosen]), y[chosen])
            loss.backward()
            optimiser.step()
    return float(loss.detach())


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of pictures that are recognised."""
    net.eval()
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())
