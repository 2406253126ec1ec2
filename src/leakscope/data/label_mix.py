"""Cutting examples into client batches with random labels, one class or two classes.

Batches are disjoint and in a fixed random order; client i holds batch i. So a client's examples depend only on the data, the mix
and the batch size, not on the number of clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.registry import lookup

Places = tuple[int, ...]
Group = tuple[int, Places]


def cut_batches(labels: Tensor, samples: int, mix: str) -> tuple[Places, ...]:
    """Return all batches of a mix as indices in `labels`; client i holds the i-th. A class of too few examples is left out."""
    cut = lookup(CUTS, mix, "mix")
    return tuple(cut(labels, samples, random.fold(random.fold(random.key(0), "label mix"), mix)))


def _random(labels: Tensor, samples: int, key: Tensor) -> Iterator[Places]:
    places = random.permutation(key, len(labels)).tolist() if len(labels) else []
    return (part for part in _parts(places, samples))


def _equal(labels: Tensor, samples: int, key: Tensor) -> Iterator[Places]:
    return (places for _, places in _shuffled(_groups(labels, samples), key))


def _two(labels: Tensor, samples: int, key: Tensor) -> Iterator[Places]:
    """Yield batches of two classes, the larger half of the first; each part is paired with the one that has waited longest."""
    if samples == 1:
        yield from _equal(labels, samples, key)
        return
    larger = -(-samples // 2)
    waiting: deque[Group] = deque()  # all of one class
    for group in _shuffled(_groups(labels, larger), key):
        if waiting and waiting[0][0] != group[0]:
            yield (*waiting.popleft()[1], *group[1][: samples - larger])
        else:
            waiting.append(group)


CUTS: dict[str, Callable[[Tensor, int, Tensor], Iterator[Places]]] = {"random": _random, "equal": _equal, "two": _two}


def _groups(labels: Tensor, size: int) -> list[Group]:
    """Return each class's examples, in their order, cut into parts of `size`; a remainder is left out."""
    order = torch.argsort(labels, stable=True)
    numbers = torch.bincount(labels).tolist() if len(labels) else []
    classes = order.split(numbers) if numbers else ()
    return [(number, part) for number, places in enumerate(classes) for part in _parts(places.tolist(), size)]


def _parts(places: Sequence[int], size: int) -> list[Places]:
    return [tuple(places[first : first + size]) for first in range(0, len(places) - size + 1, size)]


def _shuffled(groups: list[Group], key: Tensor) -> list[Group]:
    return [groups[place] for place in random.permutation(key, len(groups)).tolist()] if groups else []
