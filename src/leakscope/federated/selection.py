"""Which clients answer in a round: chosen without replacement, as a function of the key.

`replies` is the probability that a chosen client answers in time (the others are stragglers). A round without answers leaves the
global model unchanged.
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
        """Return the numbers of the clients that answer, increasing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Select a share of all clients, at least one: CPL selects 0.1 of its 100 (McMahan et al. 2017's fraction C)."""

    share: float = 0.1
    replies: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"Share.share must be in (0, 1], got {self.share}")
        _check_replies("Share", self.replies)

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return the selected clients that reply; their number is rounded to nearest, halves up."""
        return _replying(_draw(clients, max(1, math.floor(self.share * clients + 0.5)), key), self.replies, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Select `number` clients in every round."""

    number: int
    replies: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise InputError(f"Count.number must be a whole number of at least 1, got {self.number!r}")
        _check_replies("Count", self.replies)

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return the selected clients that reply."""
        if self.number > clients:
            raise InputError(f"Count.number must be at most the {clients} clients there are, got {self.number}")
        return _replying(_draw(clients, self.number, key), self.replies, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Everyone:
    """Select all clients; `replies` = 0.1 is SME's federation (appendix D), where a tenth send their weights back."""

    replies: float = 1.0

    def __post_init__(self) -> None:
        _check_replies("Everyone", self.replies)

    def choose(self, clients: int, key: Tensor) -> tuple[int, ...]:
        """Return the clients that reply."""
        return _replying(list(range(clients)), self.replies, key)


SELECTIONS: dict[str, Callable[..., Selection]] = {"share": Share, "count": Count, "everyone": Everyone}


def _check_replies(name: str, replies: float) -> None:
    if not 0 < replies <= 1:
        raise InputError(f"{name}.replies must be in (0, 1], got {replies}")


def _draw(clients: int, number: int, key: Tensor) -> list[int]:
    return sorted(random.permutation(random.fold(key, "asked"), clients)[:number].tolist())


def _replying(asked: list[int], replies: float, key: Tensor) -> tuple[int, ...]:
    """Return who answers; a client's reply does not depend on who else was selected."""
    if replies == 1:
        return tuple(asked)
    drawn = random.uniform(random.fold(random.fold(key, "replies"), torch.tensor(asked)), ())
    return tuple(client for client, u in zip(asked, drawn.tolist(), strict=True) if u < replies)
