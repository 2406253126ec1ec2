"""The task: bundled sentences, a small GPT with low-rank adapters, and local training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.data import load_text
from leakscope.models import adapt, gpt

CLIENTS = 4
LENGTH, EXAMPLES = 6, 2  # words of a sentence, sentences of a client
EPOCHS, RATE, RANK = 5, 0.3, 16  # the first two as in pyproject.toml
TOKENS, LABELS, WORDS = load_text().tokens(LENGTH)
ORDER = torch.randperm(len(TOKENS), generator=torch.Generator().manual_seed(0))
TEST = ORDER[CLIENTS * EXAMPLES : CLIENTS * EXAMPLES + 100]


def network() -> nn.Module:
    """Return the GPT with adapters on its queries and values, the same for all; all other weights are frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = gpt(vocabulary=len(WORDS), positions=LENGTH, width=64, classes=2)
        return adapt(net, rank=RANK)


def trained(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights that are trained, which is all that a client sends."""
    return {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}


def private_sentences(partition: int) -> tuple[Tensor, Tensor]:
    """Return tokens and labels of one client."""
    chosen = ORDER[partition % CLIENTS : CLIENTS * EXAMPLES : CLIENTS]
    return TOKENS[chosen], LABELS[chosen]


def train(net: nn.Module, x: Tensor, y: Tensor, *, epochs: int, rate: float) -> float:
    """Train in place with plain SGD on all sentences at once; return the last loss."""
    optimiser = torch.optim.SGD([weight for weight in net.parameters() if weight.requires_grad], lr=rate)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
    return float(loss.detach())


def accuracy(net: nn.Module) -> float:
    """Return the share of a hundred other sentences whose work is recognised."""
    with torch.no_grad():
        return float((net(TOKENS[TEST]).argmax(1) == LABELS[TEST]).float().mean())
