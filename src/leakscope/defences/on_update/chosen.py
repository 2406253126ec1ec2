"""PPDL's order: select coordinates by the clean update, then add noise to the selected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from leakscope.core.fields import check_fields
from leakscope.core.tree import Tree
from leakscope.defences.on_update.contract import Effect, Revealed, nonzero
from leakscope.defences.on_update.noise import UNDOES_ROUNDING, check_strength, with_gaussian
from leakscope.defences.on_update.sparse import CHOOSES_TWICE, check_drop, largest
from leakscope.defences.strengths import Unit, tried


@dataclass(frozen=True, slots=True)
class ChosenNoise:
    """Send the largest `share` of the coordinates with N(0, sigma^2) added to them, zero for the others.

    Coordinates are selected by the update before the noise, as in `Sparsify`. Stacking `GaussianNoise` and `Sparsify` selects by
    the noisy update instead, which under strong noise selects the noise.

    Equation: `g_i + sigma z_i` where `|g_i|` is among the `share D` largest, else 0; z in N(0, I).
    Reference: Shokri and Shmatikov 2015, Privacy-preserving deep learning, with Gaussian noise and no budget as in Fan et al.
        2020, arXiv:2006.11601 (PPDL-0.05, PPDL-0.3).
    Works when: sigma is at least about the size of the sent coordinates, which are the largest; an informed attacker compares
        only those.
    Costs: accuracy, from the dropped coordinates and from the noise; a sort of the update.
    """

    sigma: float | Tensor = field(default=0.0, metadata=tried(1.0, 10.0, unit=Unit.COORDINATE))
    share: float | Tensor = 0.3

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.SPARSE, Effect.LARGEST})
    not_after: ClassVar[Mapping[Effect, str]] = {
        Effect.ROUNDED: UNDOES_ROUNDING,
        Effect.LARGEST: CHOOSES_TWICE,
        Effect.SPARSE: "it may choose and fill coordinates that were left out; put the mask last",
    }

    def __post_init__(self) -> None:
        check_fields(self)
        check_strength("ChosenNoise.sigma", self.sigma)
        check_drop("ChosenNoise", 0.0, self.share)

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        """Return the selected coordinates with noise."""
        chosen = largest(update, self.share, each=False)
        noisy = with_gaussian(update, self.sigma, key)
        return {name: value * chosen[name] for name, value in noisy.items()}

    def reveal(self, sent: Tree) -> Revealed:
        """Return which coordinates were sent, and the standard deviation of their noise."""
        return Revealed(mask=nonzero(sent), sigma=self.sigma)
