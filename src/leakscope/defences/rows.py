"""A defence of embeddings: leave out rows of the tensors that are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.tree import Tree
from leakscope.defences.on_update import Effect, Revealed, nonzero


@dataclass(frozen=True, slots=True)
class DropRows:
    """Send each row of the named tensors with probability 1 - `drop`, zero otherwise; all other tensors are sent whole.

    It needs the names of a model, such as `embedding.weight`, so it has no entry in the catalogue by name.

    Equation: `g_v m_v` for the rows v of a named tensor, m_v 0 with probability `drop`.
    Works when: a token's row is all that shows it; the rows that are sent still name their tokens, and dense layers still span the
        inputs, so the span test is not hindered. Freezing the embedding (`requires_grad_(False)`) hides all rows.
    Costs: dropped rows are lost to training.
    """

    tensors: tuple[str, ...]
    drop: float = 0.5

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.SPARSE})
    not_after: ClassVar[Mapping[Effect, str]] = {}

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.tensors or not 0 < self.drop <= 1:
            raise InputError(f"DropRows needs tensors and a drop in (0, 1], got {self.tensors} and {self.drop}")

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the update with some rows of the named tensors at zero."""
        if missing := [name for name in self.tensors if name not in update]:
            raise InputError(f"DropRows.tensors names {missing[0]!r:.80}, which the update does not have")
        drawn = random.uniforms(
            random.fold(key, "drop_rows"), {name: update[name].shape[:1] for name in self.tensors}, torch.float64
        )
        kept = {
            name: update[name] * (rows >= self.drop).to(update[name].dtype).reshape(-1, *[1] * (update[name].ndim - 1))
            for name, rows in drawn.items()
        }
        return update | kept

    def reveal(self, sent: Tree) -> Revealed:
        """Return which coordinates were sent."""
        return Revealed(mask=nonzero(sent))
