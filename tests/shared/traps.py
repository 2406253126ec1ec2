"""Manipulations in a few lines each, to scan."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.data import load


def digits(number: int = 64) -> tuple[Tensor, Tensor]:
    data = load("digits")
    return data.pictures("train", range(number)), data.labels("train", range(number))


def dense(units: int = 128) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))


class Residual(nn.Module):
    """A convolution, a residual branch and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        output: Tensor = self.head((x + self.branch(x)).relu().flatten(1))
        return output


def convolutional() -> Residual:
    torch.manual_seed(0)
    return Residual()


class Attending(nn.Module):
    """Tokens and positions, one attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 16), nn.Embedding(6, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        output: Tensor = self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))
        return output


def attending() -> Attending:
    torch.manual_seed(0)
    return Attending()


@torch.no_grad()
def imprint() -> nn.Module:
    net, (x, _) = dense(), digits()
    net[1].weight.copy_(torch.full((128, 64), 1 / 64))
    net[1].bias.copy_(-x.mean((1, 2, 3)).quantile(torch.linspace(0.01, 0.99, 128)))
    return net


@torch.no_grad()
def trap_weights() -> nn.Module:
    net, half = dense(), torch.randn(128, 32).abs()
    rows = torch.cat([-half, 0.95 * half], 1)
    net[1].weight.copy_(rows.gather(1, torch.rand(128, 64).argsort(1)))
    return net


@torch.no_grad()
def one_example_units() -> nn.Module:
    """Return a network in which about one of 64 examples activates each unit; only biases are changed."""
    net, (x, _) = dense(256), digits()
    sums = x.flatten(1) @ net[1].weight.mT
    net[1].bias.copy_(-sums.topk(2, dim=0).values.mean(0))
    return net


@torch.no_grad()
def one_hot_filters() -> nn.Module:
    net = convolutional()
    net.stem.weight.zero_()[:, 0, 1, 1] = 1
    return net


@torch.no_grad()
def dead_branch() -> nn.Module:
    net = convolutional()
    net.branch.weight.zero_()
    return net


@torch.no_grad()
def identity_attention() -> nn.Module:
    net = attending()
    net.attention.in_proj_weight[:16] = 1e3 * torch.eye(16)
    return net


@torch.no_grad()
def few_hot_positions() -> nn.Module:
    net = attending()
    net.positions.weight.zero_()
    net.positions.weight[torch.arange(6), torch.arange(6)] = 3
    net.positions.weight[torch.arange(6), torch.arange(6) + 6] = 3
    return net


@torch.no_grad()
def class_fishing(target: int = 3) -> nn.Module:
    """Return a network in which only examples of one class have a gradient below the head (Wen et al. 2022)."""
    net = dense()
    own = net[3].weight[target].clone()
    net[3].weight.zero_()[target] = 0.5 * own
    net[3].bias.fill_(1000.0)[target] = 0
    return net


@torch.no_grad()
def lone_example(example: int = 5) -> nn.Module:
    """Return a network in which one example alone has a gradient below the head."""
    net, (x, _) = dense(), digits()
    rows = x.flatten(1)
    others = torch.cat([rows[:example], rows[example + 1 :]])
    direction = rows[example] - others.mean(0)
    least = (others @ direction).max()
    net[1].weight.copy_(direction.expand(128, 64) + 0.01 * torch.randn(128, 64))
    net[1].bias.copy_(-(least + rows[example] @ direction).expand(128) / 2)
    return net
