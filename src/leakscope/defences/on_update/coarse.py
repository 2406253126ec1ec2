"""Defences that send less of each coordinate: its sign, a few bits, or a low-rank sketch of its matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.tree import Tree
from leakscope.defences.on_update.contract import NOT_AFTER_SIGNS, Effect, Revealed
from leakscope.defences.strengths import tried

MOST_BITS = 24


@dataclass(frozen=True, slots=True)
class Sign:
    """Send the sign of every coordinate (Bernstein et al. 2018, signSGD); 0 stays 0.

    Equation: `sign(g)`.
    Reference: Bernstein et al. 2018, signSGD, arXiv:1802.04434.
    Works when: the attacker does not know the defence; an informed one counts wrong signs. Labels stay readable.
    Costs: the magnitudes; 1 bit a coordinate is sent.
    """

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.ROUNDED, Effect.SIGNS})
    not_after: ClassVar[Mapping[Effect, str]] = {
        Effect.CLIPPED: "signs do not see a clip; leave one of them out",
        Effect.ROUNDED: "signs throw the rounded values away; leave one of them out",
    }

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return -1, 0 or 1."""
        del key
        return {name: torch.sign(value) for name, value in update.items()}

    def reveal(self, sent: Tree) -> Revealed:
        """Return that coordinates have one bit."""
        del sent
        return Revealed(bits=1)


@dataclass(frozen=True, slots=True)
class Quantise:
    """Round every coordinate to one of 2^bits - 1 levels, evenly spaced over [-m, m] with m the tensor's largest magnitude.

    One bit has the same levels as two bits: -m, 0, m. Rounding is unbiased by default: up or down at random, in proportion.
    `stochastic=False` rounds to the nearest level, ties to even.

    Equation: `m round(g s / m) / s` with `s = max(2^(bits - 1) - 1, 1)` and m the largest magnitude of the tensor.
    Reference: Alistarh et al. 2017, QSGD, arXiv:1610.02132.
    Works when: there are very few bits; an informed attacker ignores differences within one rounding step.
    Costs: noise of up to one step in every coordinate; `bits` bits a coordinate are sent.
    """

    bits: int = field(default=8, metadata=tried(4, 2))
    stochastic: bool = True

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.ROUNDED})
    not_after: ClassVar[Mapping[Effect, str]] = NOT_AFTER_SIGNS

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= MOST_BITS:
            raise InputError(f"Quantise.bits must be a whole number in 1..{MOST_BITS}, got {self.bits}")
        check_fields(self)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the rounded update."""
        rounding = random.fold(key, "quantise")
        return {name: self._round(value, random.fold(rounding, name)) for name, value in update.items()}

    def reveal(self, sent: Tree) -> Revealed:
        """Return the bits; one bit has the levels of two."""
        del sent
        return Revealed(bits=max(self.bits, 2))

    def _round(self, value: Tensor, key: Tensor) -> Tensor:
        steps = max(2 ** (self.bits - 1) - 1, 1)
        largest = value.abs().amax()
        largest = torch.where(largest > 0, largest, 1)
        level = value / largest * steps
        rounded = torch.round(level)
        if self.stochastic:
            low = torch.floor(level)
            rounded = low + (random.uniform(key, value.shape, value.dtype) < level - low)
        scaled: Tensor = rounded / steps * largest
        return scaled


@dataclass(frozen=True, slots=True)
class LowRank:
    """Send each matrix as its best approximation of rank `rank` (Eckart and Young); vectors are sent unchanged.

    Equation: `U_r S_r V_r^T`, the r largest singular values of each matrix; a convolution is filters x (channels * height *
        width).
    Reference: Vogels, Karimireddy and Jaggi 2019, PowerSGD, arXiv:1905.13727, which converges to this.
    Works when: matrices have a rank above r, which needs several examples; one example in a dense layer has rank 1, and nothing
        is lost.
    Costs: a singular value decomposition a matrix; `r (rows + columns)` numbers a matrix are sent.
    """

    rank: int = field(default=1, metadata=tried(2, 1))

    once: ClassVar[bool] = True
    not_after: ClassVar[Mapping[Effect, str]] = {
        Effect.SPARSE: "a low-rank sketch fills the coordinates that were left out; put the sketch first",
        Effect.ROUNDED: "a low-rank sketch undoes the rounding; put the sketch first",
    }

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise InputError(f"LowRank.rank must be a whole number of at least 1, got {self.rank}")
        check_fields(self)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the sketched update."""
        del key
        return {name: self._sketch(value) if value.ndim > 1 else value for name, value in update.items()}

    def _sketch(self, value: Tensor) -> Tensor:
        matrix = value.reshape(value.shape[0], -1)
        if self.rank >= min(matrix.shape):
            return value
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        r = self.rank
        sketch: Tensor = (u[:, :r] * s[:r]) @ v[:r]
        return sketch.reshape(value.shape)
