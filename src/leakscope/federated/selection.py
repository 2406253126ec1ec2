"""Which clients answer in a round. Chosen without replacement, all of it a function of the key.

Every rule also has `replies`, the probability that a chosen client sends its answer back in time: stragglers are those that
do not. A round in which nobody answers leaves the global model as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError


class Selection(Protocol):
    """Chooses the clients of a round."""

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return the numbers of the clients that answer, rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Ask a share of all clients, at least one: CPL asks 0.1 of its 100 (McMahan et al. 2017's fraction C)."""

    share: float = 0.1
    replies: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"Share.share must be in (0, 1], got {self.share}")
        _check_replies("Share", self.replies)

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return those of the share that reply; the number asked is rounded to the nearest, halves up."""
        return _replying(_draw(clients, max(1, math.floor(self.share * clients + 0.5)), key), self.replies, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Ask `number` clients in every round."""

    number: int
    replies: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise InputError(f"Count.number must be a whole number of at least 1, got {self.number!r}")
        _check_replies("Count", self.replies)

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return those of the asked that reply."""
        if self.number > clients:
            raise InputError(f"Count.number must be at most the {clients} clients there are, got {self.number}")
        return _replying(_draw(clients, self.number, key), self.replies, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Everyone:
    """Ask all clients; with `replies` = 0.1 this is SME's federation (appendix D), where a tenth send their weights back."""

    replies: float = 1.0

    def __post_init__(self) -> None:
        _check_replies("Everyone", self.replies)

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return those who reply."""
        return _replying(list(range(clients)), self.replies, key)


SELECTIONS: dict[str, Callable[..., Selection]] = {"share": Share, "count": Count, "everyone": Everyone}


def _check_replies(name: str, replies: float) -> None:
    if not 0 < replies <= 1:
        raise InputError(f"{name}.replies must be in (0, 1], got {replies}")


def _draw(clients: int, number: int, key: Tensor) -> list[int]:
    return sorted(random.permutation(random.fold(key, "asked"), clients)[:number].tolist())


def _replying(asked: list[int], replies: float, key: Tensor) -> tuple[int, ...]:
    """Return who answers; whether a client does depends on its own number, not on who else was asked."""
    if replies == 1:
        return tuple(asked)
    drawn = random.uniform(random.fold(random.fold(key, "replies"), torch.tensor(asked)), ())
    return tuple(client for client, u in zip(asked, drawn.tolist(), strict=True) if u < replies)
