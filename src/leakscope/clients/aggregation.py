"""The mean update of K clients as one observation: all that a server sees of them under secure aggregation.

With n_k examples at client k and n in all, the server sees `sum_k n_k / n u_k`. For gradients of a mean loss that is the gradient of the
joined batch. For weights it is the mean of the changes; after one local step the change by the joined batch, after more only nearly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, V, map_tensors, scale
from leakscope.core.types import Batch, LocalTraining

OF_ONE_CLIENT = ("largest", "largest_each", "bound", "bound_each", "bits")  # facts that no mean of several updates has


def split_clients(batch: Batch, clients: int) -> Batch:
    """Return the T x K N examples of T aggregates as T K clients of N; the clients of one aggregate are neighbours."""
    if clients == 1:
        return batch
    if batch.samples % clients:
        raise InputError(f"Client.aggregate must divide the {batch.samples} examples behind an update, got {clients}")
    divided = map_tensors(lambda value: value.unflatten(1, (clients, -1)).flatten(0, 1), batch)
    if not bool(divided.mask.any(1).all()):
        raise InputError(f"Client.aggregate is {clients}, and one of so many clients holds no example")
    return divided


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


def average(updates: Tree, counts: Tensor, clients: int) -> Tree:
    """Return the mean updates of T aggregates, weighted by the examples of the T K clients."""
    if clients == 1:
        return updates
    number = counts.double().unflatten(0, (-1, clients))
    shares = number / number.sum(1, keepdim=True)

    def averaged(value: Tensor) -> Tensor:
        parts = value.unflatten(0, (-1, clients))
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
