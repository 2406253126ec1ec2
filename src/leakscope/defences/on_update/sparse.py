"""Defences that send only some coordinates: the largest, the largest with the rest accumulated, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.tree import Tree, add
from leakscope.defences.on_update.contract import Effect, Revealed, nonzero
from leakscope.defences.strengths import tried

USUAL_DROP = 0.99
MILLION = 10**6
CHOOSES_TWICE = "both choose the largest coordinates; leave one of them out"
ONE_SIZE = "signs have one size, so none is the largest; put the signs last"
MISPLACED = {Effect.SIGNS: ONE_SIZE, Effect.LARGEST: CHOOSES_TWICE}


@dataclass(frozen=True, slots=True)
class Sparsify:
    """Send the largest coordinates by magnitude, zero for the others.

    Give `drop`, the share discarded (CPL's theta, in [0, 1)), or `share`, the share sent (PPDL's, in (0, 1]); over the whole
    update, or within each tensor (`each`). (1 - drop) D coordinates are sent, rounded (ties to even), at least one. The share is
    rounded to six decimals, so that 0.9 means the same in float32 and float64. Of equal magnitudes the earlier coordinate is
    sent.

    Equation: `g_i` where `|g_i|` is among the `(1 - drop) D` largest, else 0.
    Reference: Shokri and Shmatikov 2015, Privacy-preserving deep learning; Zhu et al. 2019, arXiv:1906.08935.
    Works when: most is dropped (0.9 and more); an informed attacker compares only the coordinates that were sent.
    Costs: dropped coordinates are lost to training; a sort of the update.
    """

    drop: float | Tensor = field(default=0.0, metadata=tried(0.9, 0.99))
    share: float | Tensor | None = None
    each: bool = False

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.SPARSE, Effect.LARGEST})
    not_after: ClassVar[Mapping[Effect, str]] = MISPLACED

    def __post_init__(self) -> None:
        check_fields(self)
        check_drop("Sparsify", self.drop, self.share)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update with its small coordinates at zero."""
        del key
        mask = largest(update, sent_share(self.drop, self.share), each=self.each)
        return {name: value * mask[name] for name, value in update.items()}

    def reveal(self, sent: Tree) -> Revealed:
        """Return which coordinates were sent, and that they are the largest."""
        return Revealed(mask=nonzero(sent), largest=True, largest_each=self.each)


@dataclass(frozen=True, slots=True)
class DeepCompression:
    """Send the largest coordinates of the accumulated updates; coordinates that are not sent are kept for later rounds.

    With momentum correction and masking. `drop` or `share` as in `Sparsify`; without either, 0.99 is dropped.

    Equation: `u <- momentum u + g`, `v <- v + u`, the largest of v are sent and set to 0 in both: nothing is lost, only delayed.
    Reference: Lin et al. 2018, Deep gradient compression, arXiv:1712.01887.
    Works when: as Sparsify in the first round; later rounds send sums over rounds, which no attack in leakscope separates.
    Costs: two more copies of the update at the client, a sort of the update.
    """

    drop: float | Tensor | None = field(default=None, metadata=tried(0.9, 0.99))
    share: float | Tensor | None = None
    momentum: float = 0.0

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.SPARSE, Effect.LARGEST})
    not_after: ClassVar[Mapping[Effect, str]] = MISPLACED

    def __post_init__(self) -> None:
        check_fields(self)
        check_drop("DeepCompression", 0.0 if self.drop is None else self.drop, self.share)
        if not 0 <= self.momentum < 1:
            raise InputError(f"DeepCompression.momentum must be in [0, 1), got {self.momentum}")

    def begin(self, update: Tree) -> Tree:
        """Return zero accumulators."""
        return {f"{part}.{name}": torch.zeros_like(value) for part in ("u", "v") for name, value in update.items()}

    def protect_and_remember(self, update: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Return the coordinates that are sent and the accumulators for the next round."""
        del key
        u = {name: self.momentum * state[f"u.{name}"] + value for name, value in update.items()}
        v = add({name: state[f"v.{name}"] for name in update}, u)
        share = sent_share(USUAL_DROP if self.drop is None else self.drop, self.share)
        mask = largest(v, share, each=False)
        sent = {name: value * mask[name] for name, value in v.items()}
        left = {f"u.{name}": value * (1 - mask[name]) for name, value in u.items()}
        left |= {f"v.{name}": value * (1 - mask[name]) for name, value in v.items()}
        return sent, left

    def reveal(self, sent: Tree) -> Revealed:
        """Return which coordinates were sent. `largest` stays False: they are the largest of sums over rounds."""
        return Revealed(mask=nonzero(sent))


@dataclass(frozen=True, slots=True)
class RandomMask:
    """Send each coordinate with probability `share`, zero otherwise; the mask is drawn from the key of each round.

    Equation: `g_i m_i`, with m_i 1 with probability `share`.
    Reference: Shokri and Shmatikov 2015, Privacy-preserving deep learning, who share a random part.
    Works when: the attacker does not know which coordinates were sent; an informed one can reconstruct a small image from a
        random tenth.
    Costs: dropped coordinates are lost to training.
    """

    share: float | Tensor = field(default=0.5, metadata=tried(0.5, 0.1))

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.SPARSE})

    def __post_init__(self) -> None:
        check_fields(self)
        check_drop("RandomMask", 0.0, self.share)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update with the coordinates outside the mask at zero."""
        shapes = {name: value.shape for name, value in update.items()}
        drawn = random.uniforms(random.fold(key, "random_mask"), shapes, torch.float64)
        return {name: value * (drawn[name].to(value.dtype) < self.share) for name, value in update.items()}

    def reveal(self, sent: Tree) -> Revealed:
        """Return which coordinates were sent."""
        return Revealed(mask=nonzero(sent))


def sent_share(drop: float | Tensor, share: float | Tensor | None) -> float | Tensor:
    """Return the share of coordinates that is sent."""
    return 1 - drop if share is None else share


def check_drop(name: str, drop: float | Tensor, share: float | Tensor | None) -> None:
    """Raise for shares outside their range, and if both are given."""
    dropped = torch.as_tensor(drop)
    if not bool(((dropped >= 0) & (dropped < 1)).all()):
        raise InputError(f"{name}.drop must be in [0, 1), got {drop}")
    if share is None:
        return
    sent = torch.as_tensor(share)
    if not bool(((sent > 0) & (sent <= 1)).all()):
        raise InputError(f"{name}.share must be in (0, 1], got {share}")
    if bool((dropped != 0).any()):
        raise InputError(f"{name} takes drop (share discarded) or share (share sent), not both")


def largest(update: Tree, share: float | Tensor, *, each: bool) -> Tree:
    """Return 1 for the largest coordinates by magnitude and 0 for the others; see `Sparsify` for count and ties."""
    if each:
        return {name: _largest(value.reshape(-1), share).reshape(value.shape) for name, value in update.items()}
    flat = torch.cat([value.reshape(-1) for value in update.values()])
    parts = _largest(flat, share).split([value.numel() for value in update.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(update.items(), parts, strict=True)}


def _largest(flat: Tensor, share: float | Tensor) -> Tensor:
    """Return the mask of the largest coordinates, by rank, so that the number may differ between trials of a batch."""
    millionths = torch.round(torch.as_tensor(share, dtype=torch.float64, device=flat.device) * MILLION)
    number = torch.round(millionths * flat.numel() / MILLION).clamp_min(1)
    order = torch.argsort(flat.abs(), descending=True, stable=True)
    rank = torch.zeros_like(order).scatter(0, order, torch.arange(flat.numel(), device=flat.device))
    return (rank < number).to(flat.dtype)
