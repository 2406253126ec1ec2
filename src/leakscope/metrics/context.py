"""What some metrics compare with beside the private example: public examples of its class and the attacked network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr

CANDIDATES = 99  # public examples of a class: with the true one 100, so that chance is 1 %

Features = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """True labels (T x N), public inputs (P x ...) with their labels (P), and the network's features.

    `features(trial, inputs)` returns M rows for M inputs in [0, 1] under the weights of a trial; None without a network. The
    public examples must not hold private ones.
    """

    labels: Tensor
    public: Tensor
    public_labels: Tensor
    features: Features | None = None

    __repr__ = short_repr

    def of_class(self, label: int, most: int | None = CANDIDATES) -> Tensor:
        """Return the first `most` public examples of a class, all for None."""
        places = (self.public_labels == label).nonzero().squeeze(1)[:most]
        if not len(places):
            raise InputError(f"there is no public example of class {label} to compare with")
        return self.public[places]

    def network(self) -> Features:
        """Return the network's features, or raise if there is no network."""
        if self.features is None:
            raise InputError("this metric compares features of the attacked network, which is not given")
        return self.features
