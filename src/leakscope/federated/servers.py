"""Server aggregation rules. With a_k the weight of client k, sum_k a_k = 1:

    distributed SGD    w(t+1) = w(t) - eta sum_k a_k grad_k      (clients share the gradient of one step)
    averaging          w(t+1) = sum_k a_k w_k(t+1)
    deltas             w(t+1) = w(t) + eta_s sum_k a_k (w_k(t+1) - w(t))
    round robin        w <- w + eta_s (w_k - w) for one client after the other, each starting where the last one ended

a_k = n_k / n, n_k the examples of client k and n those of all who answered. The first three are CPL's section 2 (which prints n_t
where n_k is meant; McMahan et al. 2017, arXiv:1602.05629); round robin is SPN's algorithm 4. `update` is a client's descent
direction: its gradient, or before minus after. Sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, subtract
from leakscope.core.types import Shares


class Server(Protocol):
    """An aggregation rule: what clients must share, and whether they go one by one."""

    takes: ClassVar[Shares]
    in_turn: ClassVar[bool] = False

    def weigh(self, counts: Tensor) -> Tensor:
        """Return a_k = n_k / n for clients of so many examples."""
        return by_examples(counts)

    def read(self, weights: Tree, update: Tree) -> Tree:
        """Return the quantity that is averaged, with a leading client dimension: by default the descent direction."""
        del weights
        return update

    def step(self, weights: Tree, mean: Tree, decay: float) -> Tree:
        """Return the next weights from the weighted mean of what `read` returns; `decay` is that of the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedSGD(Server):
    """Step against the weighted mean of the clients' gradients (FedSGD), at the server's learning rate."""

    takes: ClassVar[Shares] = Shares.GRADIENT
    rate: float = 0.1

    def __post_init__(self) -> None:
        _check_rate(self)

    def step(self, weights: Tree, mean: Tree, decay: float) -> Tree:
        """Return w - eta mean."""
        return _moved(weights, mean, decay * self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging(Server):
    """Average the clients' weights, weighted by their examples (FedAvg)."""

    takes: ClassVar[Shares] = Shares.WEIGHTS

    def read(self, weights: Tree, update: Tree) -> Tree:
        """Return the clients' weights."""
        return subtract(weights, update)

    def step(self, weights: Tree, mean: Tree, decay: float) -> Tree:
        """Return the mean."""
        del weights, decay
        return mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Deltas(Server):
    """Add the clients' weighted mean change times a server rate (1: averaging); `equal` weighs all alike, as SPN's algorithm 2."""

    takes: ClassVar[Shares] = Shares.WEIGHTS
    rate: float = 1.0
    equal: bool = False

    def __post_init__(self) -> None:
        _check_rate(self)

    def weigh(self, counts: Tensor) -> Tensor:
        """Return n_k / n, or 1 / K."""
        return by_examples(torch.ones_like(counts) if self.equal else counts)

    def step(self, weights: Tree, mean: Tree, decay: float) -> Tree:
        """Return w + eta_s mean change."""
        del decay
        return _moved(weights, mean, self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(Server):
    """Let one client after the other, in order of their number, change the global model."""

    takes: ClassVar[Shares] = Shares.WEIGHTS
    in_turn: ClassVar[bool] = True
    rate: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self)

    def step(self, weights: Tree, mean: Tree, decay: float) -> Tree:
        """Return w + eta_s change."""
        del decay
        return _moved(weights, mean, self.rate)


SERVERS: dict[str, Callable[..., Server]] = {
    "fedsgd": DistributedSGD,
    "fedavg": Averaging,
    "deltas": Deltas,
    "round_robin": RoundRobin,
}


def by_examples(counts: Tensor) -> Tensor:
    """Return n_k / n in float64.

    >>> by_examples(torch.tensor([1, 3]))
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    return counts.double() / counts.sum()


def add_weighted(total: Mapping[str, Tensor] | None, shares: Tensor, answers: Tree) -> Tree:
    """Return `total + sum_k a_k answer_k` in float64; `answers` lead with the clients."""
    sums = {name: torch.tensordot(shares, value.double(), dims=1) for name, value in answers.items()}
    return sums if total is None else {name: total[name] + value for name, value in sums.items()}


def average_buffers(before: Tree, parts: Sequence[tuple[Tensor, Tree]]) -> Tree:
    """Return the global buffers: the clients' weighted mean, the maximum for counters, the same bits if no client changed them."""
    averaged: Tree = {}
    for name, value in before.items():
        answers = [(shares, buffers[name]) for shares, buffers in parts]
        if all(torch.equal(each, value.expand_as(each)) for _, each in answers):
            averaged[name] = value
        elif value.is_floating_point():
            total = sum(torch.tensordot(shares, each.double(), dims=1) for shares, each in answers)
            averaged[name] = torch.as_tensor(total).to(value.dtype)
        else:
            averaged[name] = torch.stack([each.amax(0) for _, each in answers]).amax(0)
    return averaged


def _moved(weights: Tree, mean: Tree, rate: float) -> Tree:
    return {name: value - rate * mean[name] for name, value in weights.items()}


def name_of(server: Server) -> str:
    """Return a server's name in scenario files, or else its class name.

    >>> name_of(Averaging())
    'fedavg'
    """
    return next((name for name, kind in SERVERS.items() if kind is type(server)), type(server).__name__)


def _check_rate(server: DistributedSGD | Deltas | RoundRobin) -> None:
    if not 0 < server.rate < math.inf:
        raise InputError(f"{name_of(server)}.rate must be in (0, inf), got {server.rate}")
