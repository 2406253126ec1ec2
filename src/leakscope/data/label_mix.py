"""Which examples go together in a client's batch, so that its labels are as they fall, all equal, or of two classes.

Every mix cuts the examples into batches that share nothing, then puts the batches in a fixed random order: client i holds
batch i. So a client's examples depend on the data, the mix and the batch size alone, never on how many clients there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.registry import lookup

Places = tuple[int, ...]
Piece = tuple[int, Places]


def cut_batches(labels: Tensor, samples: int, mix: str) -> tuple[Places, ...]:
    """Return all batches of a mix as places in `labels`; client i holds the i-th.

    `random`: examples drawn at random, labels as they fall. `equal`: all of one class. `two`: of two classes, the larger half
    of the first (for one sample: `equal`). A class of too few examples takes no part.
    """
    cut = lookup(CUTS, mix, "mix")
    return tuple(cut(labels, samples, random.fold(random.fold(random.key(0), "label mix"), mix)))


def _random(labels: Tensor, samples: int, key: Tensor) -> Iterator[Places]:
    places = random.permutation(key, len(labels)).tolist() if len(labels) else []
    return (part for part in _parts(places, samples))


def _equal(labels: Tensor, samples: int, key: Tensor) -> Iterator[Places]:
    return (places for _, places in _shuffled(_pieces(labels, samples), key))


def _two(labels: Tensor, samples: int, key: Tensor) -> Iterator[Places]:
    """Yield pairs of pieces of different classes, each with the piece that has waited longest."""
    if samples == 1:
        yield from _equal(labels, samples, key)
        return
    larger = -(-samples // 2)
    waiting: deque[Piece] = deque()  # all of one class
    for piece in _shuffled(_pieces(labels, larger), key):
        if waiting and waiting[0][0] != piece[0]:
            yield (*waiting.popleft()[1], *piece[1][: samples - larger])
        else:
            waiting.append(piece)


CUTS: dict[str, Callable[[Tensor, int, Tensor], Iterator[Places]]] = {"random": _random, "equal": _equal, "two": _two}


def _pieces(labels: Tensor, size: int) -> list[Piece]:
    """Return each class's examples, in their order, cut into pieces of `size`; what is left over is left out."""
    order = torch.argsort(labels, stable=True)
    numbers = torch.bincount(labels).tolist() if len(labels) else []
    classes = order.split(numbers) if numbers else ()
    return [(number, part) for number, places in enumerate(classes) for part in _parts(places.tolist(), size)]


def _parts(places: Sequence[int], size: int) -> list[Places]:
    return [tuple(places[first : first + size]) for first in range(0, len(places) - size + 1, size)]


def _shuffled(pieces: list[Piece], key: Tensor) -> list[Piece]:
    return [pieces[place] for place in random.permutation(key, len(pieces)).tolist()] if pieces else []
