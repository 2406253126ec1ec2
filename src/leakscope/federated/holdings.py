"""Which client holds which examples, and the private batches of several clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import Batch
from leakscope.data import Dataset, Part
from leakscope.data.partition import Partition


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """The data of a federation: `shares[k]` are the indices in `part` of client k's examples."""

    data: Dataset = field(repr=False)
    part: Part
    shares: tuple[Tensor, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.shares or not all(len(share) for share in self.shares):
            raise InputError("every client of a federation needs at least one example")

    @property
    def clients(self) -> int:
        """Return N."""
        return len(self.shares)

    @property
    def counts(self) -> Tensor:
        """Return n_k, the examples of each client."""
        return torch.tensor([len(share) for share in self.shares])

    def batch(self, clients: Sequence[int], device: torch.device | None = None) -> Batch:
        """Return the private batch of some clients, padded to the largest of them."""
        most = max(len(self.shares[k]) for k in clients)
        places = torch.stack([_padded(self.shares[k], most) for k in clients])
        mask = torch.stack([torch.arange(most) < len(self.shares[k]) for k in clients])
        flat = places.reshape(-1)
        inputs = self.data.pictures(self.part, flat).reshape(*places.shape, *self.data.input_shape)
        labels = self.data.labels(self.part, flat).reshape(places.shape)
        return Batch(inputs.to(device), labels.to(device), mask.to(device))


def deal(data: Dataset, partition: Partition, *, part: Part = "train", seed: int = 0) -> Holdings:
    """Return the holdings from a partition of a part of a data set; deterministic in the seed."""
    groups = data.groups_train if part == "train" else data.groups_test
    labels = data.labels(part, slice(None))
    if not len(labels):
        raise InputError(f"{data.name} {part} has no examples to deal out")
    return Holdings(data, part, partition.split(labels, groups, random.fold(random.key(seed), "partition")))


def _padded(places: Tensor, length: int) -> Tensor:
    """Return indices padded with the first of them, which the mask hides."""
    return torch.cat([places, places[:1].expand(length - len(places))])
