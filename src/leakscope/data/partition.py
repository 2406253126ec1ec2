"""Partitions: which client holds which examples. Each example is used at most once; no client is empty; all draws come from the key."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.data.dataset import Array

Dealt = tuple[Tensor, ...]


class Partition(Protocol):
    """Divides the examples of a part among clients."""

    def split(self, labels: Tensor, groups: Array | None, key: Tensor) -> Dealt:
        """Return the indices of each client's examples; `labels` are the classes, `groups` the sources (writers) if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IID:
    """Deal the shuffled examples out evenly: sizes differ by at most one; `samples` limits each client and drops the rest."""

    clients: int
    samples: int | None = None
    stratified: bool = False  # every client has as many of each class, to within one (SPN, appendix C)

    def __post_init__(self) -> None:
        _at_least_one(self, "clients", "samples")

    def split(self, labels: Tensor, groups: Array | None, key: Tensor) -> Dealt:
        """Return the indices; the j-th example of the order goes to client j mod N."""
        del groups
        _enough("IID", self.clients, len(labels))
        wanted = self.clients * self.samples if self.samples else 0
        if wanted > len(labels):
            raise InputError(
                f"IID.samples must be at most {len(labels) // self.clients} for {self.clients} clients and "
                f"{len(labels)} examples, got {self.samples}"
            )
        order = random.permutation(random.fold(key, "iid"), len(labels))
        if self.stratified:
            order = order[torch.argsort(labels[order], stable=True)]
        shares = tuple(order[number :: self.clients] for number in range(self.clients))
        if not self.samples:
            return shares
        mixed = (random.permutation(random.fold(random.fold(key, "cut"), i), len(s)) for i, s in enumerate(shares))
        return tuple(share[chosen[: self.samples]] for share, chosen in zip(shares, mixed, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirichlet:
    """Deal each class out by proportions drawn from Dirichlet(alpha): the smaller alpha, the more clients differ.

    For every class c, client k gets the share p_ck with p_c ~ Dir(alpha, ..., alpha). A client with fewer than `least` examples
    takes them from the largest, one by one. Hsu et al. 2019, arXiv:1909.06335; SPN uses alpha = 0.9.
    """

    clients: int
    alpha: float = 0.9
    least: int = 1

    def __post_init__(self) -> None:
        _at_least_one(self, "clients", "least")
        if not 0 < self.alpha < math.inf:
            raise InputError(f"Dirichlet.alpha must be in (0, inf), got {self.alpha}")

    def split(self, labels: Tensor, groups: Array | None, key: Tensor) -> Dealt:
        """Return the indices of each client's examples."""
        del groups
        _enough("Dirichlet", self.clients, len(labels), self.least)
        held: list[list[int]] = [[] for _ in range(self.clients)]
        for label, places in _by_class(labels, random.fold(key, "dirichlet")):
            class_key = random.fold(random.fold(key, "proportions"), label)
            ends = (_proportions(class_key, self.alpha, self.clients).cumsum(0) * len(places)).round().long().tolist()
            for client, (first, last) in enumerate(zip([0, *ends[:-1]], [*ends[:-1], len(places)], strict=True)):
                held[client] += places[first:last]
        while min(map(len, held)) < self.least:
            poorest, richest = min(held, key=len), max(held, key=len)
            poorest.append(richest.pop())
        return tuple(torch.tensor(places) for places in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByClass:
    """Give each client examples of only `classes` classes; each class is dealt evenly to the clients that hold it.

    Classes are assigned in a shuffled cycle, so the numbers of clients per class differ by at most one. A class that no client
    holds is left out.
    """

    clients: int
    classes: int = 1

    def __post_init__(self) -> None:
        _at_least_one(self, "clients", "classes")

    def split(self, labels: Tensor, groups: Array | None, key: Tensor) -> Dealt:
        """Return the indices of each client's examples."""
        del groups
        _enough("ByClass", self.clients, len(labels))
        by_class = _by_class(labels, random.fold(key, "by class"))
        if self.classes > len(by_class):
            raise InputError(
                f"ByClass.classes must be at most the {len(by_class)} classes there are, got {self.classes}"
            )
        turn = random.permutation(random.fold(key, "classes"), len(by_class)).tolist()
        holds = [
            [turn[(client * self.classes + j) % len(by_class)] for j in range(self.classes)]
            for client in range(self.clients)
        ]
        held: list[list[int]] = [[] for _ in range(self.clients)]
        for number, (_, places) in enumerate(by_class):
            holders = [client for client in range(self.clients) if number in holds[client]]
            for turn_, client in enumerate(holders):
                held[client] += places[turn_ :: len(holders)]
        poor = next((client for client, places in enumerate(held) if not places), None)
        if poor is not None:
            raise InputError(
                f"ByClass leaves client {poor} without an example: {self.clients} clients of {self.classes} classes each are "
                f"too many for {len(labels)} examples in {len(by_class)} classes"
            )
        return tuple(torch.tensor(places) for places in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByWriter:
    """Give each client the examples of one writer (or photograph); `samples` keeps the first of each, as SME does with FEMNIST."""

    clients: int | None = None  # writers drawn at random; None takes all
    least: int = 1
    samples: int | None = None

    def __post_init__(self) -> None:
        _at_least_one(self, "clients", "least", "samples")

    def split(self, labels: Tensor, groups: Array | None, key: Tensor) -> Dealt:
        """Return the indices, in the order of the writers' numbers."""
        if groups is None:
            raise InputError("ByWriter needs data with writers (such as the npz form of mnist); this has none")
        if len(groups) != len(labels):
            raise InputError(f"one group per example: {len(labels)} examples, {len(groups)} groups")
        _, number = np.unique(groups, return_inverse=True)
        order = np.argsort(number, kind="stable")
        borders = np.flatnonzero(np.diff(number[order])) + 1
        writers = [torch.from_numpy(places) for places in np.split(order, borders) if len(places) >= self.least]
        if (self.clients or 1) > len(writers):
            raise InputError(
                f"ByWriter.clients must be at most the {len(writers)} writers of {self.least} examples or more, "
                f"got {self.clients or 'none'}"
            )
        if self.clients is not None:
            drawn = random.permutation(random.fold(key, "writers"), len(writers))[: self.clients]
            writers = [writers[place] for place in sorted(drawn.tolist())]
        return tuple(places[: self.samples].clone() for places in writers)


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "by_class": ByClass,
    "by_writer": ByWriter,
}


def _at_least_one(partition: object, *names: str) -> None:
    for name in names:
        value = getattr(partition, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            field = f"{type(partition).__name__}.{name}"
            raise InputError(f"{field} must be a whole number of at least 1, got {value!r}")


def _enough(name: str, clients: int, examples: int, least: int = 1) -> None:
    if clients * least > examples:
        each = f" of at least {least} examples" if least > 1 else ""
        raise InputError(
            f"{name}.clients must be at most {examples // least} for {examples} examples{each}, got {clients}"
        )


def _by_class(labels: Tensor, key: Tensor) -> list[tuple[int, list[int]]]:
    """Return (label, its indices in random order) for every class that has an example, by rising label."""
    order = random.permutation(key, len(labels))
    return [(int(label), order[labels[order] == label].tolist()) for label in labels.unique().tolist()]


def _proportions(key: Tensor, alpha: float, number: int) -> Tensor:
    """Return one draw of Dir(alpha, ..., alpha), via log Gamma(alpha + 1) + log(u) / alpha, which does not underflow for small alpha."""
    from scipy.special import gammaincinv

    first, second, third = (
        random.uniform(random.fold(key, part), (number,), torch.float64) for part in ("high", "low", "power")
    )
    whole = gammaincinv(alpha + 1, (first + 2**-24 * (second + 0.5)).numpy())
    return torch.softmax(torch.from_numpy(whole).log() + (third + 2**-25).log() / alpha, dim=0)
