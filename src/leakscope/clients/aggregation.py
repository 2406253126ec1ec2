"""The mean update of K clients as one observation: all that a server sees of them under secure aggregation.

With n_k examples at client k and n in all that answered, the server sees `sum_k n_k / n u_k`. For gradients of a mean loss that is the
gradient of the joined batch. For weights it is the mean of the changes; after one local step the change by the joined batch, after more
only nearly. Clients that drop out send nothing: they are in neither sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.tree import Tree, V, map_tensors, scale
from leakscope.core.types import Batch, LocalTraining

OF_ONE_CLIENT = ("largest", "largest_each", "bound", "bound_each", "bits")  # facts that no mean of several updates has


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How many clients an update is the mean of, weighted by their examples.

    `dropouts` of the `clients` send nothing; which ones is drawn for every trial, and the server knows how many answered. The largest
    client holds `skew` times the examples of the smallest, the others sizes in between (a geometric series); the mean stays.
    """

    clients: int = 1
    dropouts: int = 0
    skew: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.clients < 1:
            raise InputError(f"Aggregation.clients must be at least 1, got {self.clients}")
        if not 0 <= self.dropouts < self.clients:
            raise InputError(
                f"Aggregation.dropouts must be below the number of clients ({self.clients}), got {self.dropouts}"
            )
        if not 1 <= self.skew < math.inf:
            raise InputError(f"Aggregation.skew must be in [1, inf), got {self.skew}")

    @property
    def answers(self) -> int:
        """Return how many clients answer."""
        return self.clients - self.dropouts

    def sizes(self, examples: int) -> list[int]:
        """Return the examples of each client, `examples` together.

        >>> Aggregation(3, skew=4.0).sizes(14)
        [2, 4, 8]
        """
        K = self.clients
        if self.skew == 1 and examples % K:
            raise InputError(f"Client.aggregate must divide the {examples} examples of an update, got {K}")
        shares = torch.tensor([self.skew ** (k / max(K - 1, 1)) for k in range(K)], dtype=torch.float64).cumsum(0)
        ends = (examples * shares / shares[-1]).round().to(torch.int64)
        sizes: list[int] = ends.diff(prepend=ends.new_zeros(1)).tolist()
        if min(sizes) < 1:
            raise InputError(f"Client.aggregate is {K}: {examples} examples leave a client without one")
        return sizes

    def answering(self, seeds: Sequence[int]) -> Tensor:
        """Return which clients of each trial answer, T x K."""
        draws = random.permutation(random.fold(random.key(list(seeds)), "dropouts"), self.clients)
        return draws >= self.dropouts

    def answered(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        """Return the examples behind the updates that the server got; where trials have unequal numbers, padding ends them."""
        if not self.dropouts:
            return batch
        sizes = torch.tensor(self.sizes(batch.samples))
        kept = self.answering(seeds).repeat_interleave(sizes, 1).to(batch.mask.device)
        most = int(sizes.sort().values[self.dropouts :].sum())
        order = (~kept).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        rows = torch.arange(batch.trials, device=order.device)[:, None]
        found = map_tensors(lambda value: value[rows, order], batch)
        return replace(found, mask=found.mask & kept[rows, order])


def read_aggregation(settings: int | Mapping[str, object]) -> int | Aggregation:
    """Return the clients behind an update as a file names them: a number, or the settings of an `Aggregation`."""
    return Aggregation(**settings) if isinstance(settings, Mapping) else settings  # type: ignore[arg-type]


def summed_clients(given: int | Aggregation, clients: int | None, dropouts: int | None) -> int | Aggregation:
    """Return the clients behind an update with another number of clients or of dropouts, where they are not None."""
    if dropouts is None and not isinstance(given, Aggregation):
        return given if clients is None else clients
    summed = given if isinstance(given, Aggregation) else Aggregation(given)
    changed = replace(summed, clients=summed.clients if clients is None else clients, dropouts=0)
    return replace(changed, dropouts=summed.dropouts if dropouts is None else dropouts)


def split_clients(batch: Batch, aggregation: Aggregation) -> Batch:
    """Return the examples of T aggregates as T K clients, padded to the largest; the clients of one aggregate are neighbours."""
    if aggregation.clients == 1:
        return batch
    held = _places(aggregation, batch.samples).to(batch.mask.device)
    divided = map_tensors(lambda value: value[:, held.clamp_min(0)].flatten(0, 1), batch)
    divided = replace(divided, mask=divided.mask & (held >= 0).repeat(batch.trials, 1))
    if not bool(divided.mask.any(1).all()):
        raise InputError(f"Client.aggregate is {aggregation.clients}: the batch leaves a client without an example")
    return divided


def join_clients(value: Tensor, aggregation: Aggregation, examples: int) -> Tensor:
    """Return values of the examples of T K clients as those of T aggregates: the inverse of `split_clients`."""
    if aggregation.clients == 1:
        return value
    held = _places(aggregation, examples).to(value.device)
    joined: Tensor = value.unflatten(0, (-1, aggregation.clients))[:, held >= 0]
    return joined


def _places(aggregation: Aggregation, examples: int) -> Tensor:
    """Return the places of each client's examples, K x the most that one holds; -1 where it holds fewer."""
    parts = torch.arange(examples).split(aggregation.sizes(examples))
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-1)


def client_keys_of(keys: Tensor, clients: int) -> Tensor:
    """Return a key for every client of T aggregates (T K)."""
    if clients == 1:
        return keys
    each = [random.fold(random.fold(keys, "aggregate"), number) for number in range(clients)]
    return torch.stack(each, 1).flatten()


def spread(value: V, clients: int) -> V:
    """Return values of T aggregates as those of their T K clients."""
    return value if clients == 1 else map_tensors(lambda each: each.repeat_interleave(clients, 0), value)


def first_of_each(tree: Tree, clients: int) -> Tree:
    """Return what the clients of each aggregate share, from T K to T."""
    return tree if clients == 1 else {name: value[::clients] for name, value in tree.items()}


def average(updates: Tree, counts: Tensor, aggregation: Aggregation, seeds: Sequence[int]) -> Tree:
    """Return the mean updates of T aggregates over the clients that answer, weighted by the examples of the T K clients."""
    if aggregation.clients == 1:
        return updates
    number = counts.double().unflatten(0, (-1, aggregation.clients))
    number = number * aggregation.answering(seeds).to(number)
    shares = number / number.sum(1, keepdim=True)

    def averaged(value: Tensor) -> Tensor:
        parts = value.unflatten(0, (-1, aggregation.clients))
        weights: Tensor = shares.to(value).reshape(*shares.shape, *[1] * (parts.ndim - 2))
        mean: Tensor = (parts * weights).sum(1)
        return mean

    return {name: averaged(value) for name, value in updates.items()}


def joint_training(local: LocalTraining | None, clients: int) -> LocalTraining | None:
    """Return the local training of the joined batch with as many steps: batches of K times the size."""
    if local is None or local.batch_size is None:
        return local
    return replace(local, batch_size=clients * local.batch_size)


def facts_of_mean(facts: Mapping[str, object], clients: int) -> dict[str, object]:
    """Return what is known of the mean of K defended updates: independent noise shrinks; clips, signs and rounding steps do not add up."""
    if clients == 1:
        return dict(facts)
    kept = {name: value for name, value in facts.items() if name not in OF_ONE_CLIENT}
    fewer = 1 / math.sqrt(clients)
    if isinstance(sigma := kept.get("sigma"), Tensor):
        kept["sigma"] = sigma * fewer
    if isinstance(levels := kept.get("sigma_each"), dict):
        kept["sigma_each"] = scale(levels, fewer)
    return kept
