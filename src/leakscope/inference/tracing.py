"""The tracing attack of the SPN paper: a sample is attributed to the owner of the nearest reconstruction.

Fan et al. 2020, arXiv:2006.11601, algorithm 6: X reconstructions belong to N participants; every query gets the participant of
the reconstruction with the smallest MSE. The distance is the share of wrong attributions; guessing has 1 - 1/N. The paper queries
the whole data set (50,000) against X = 1,000 reconstructions, so most queries have no reconstruction; those that have one are
also reported separately. With N equal parts no defence can move the distance over all queries far: it is between about (1 -
1/N)(1 - X / number of queries) for perfect reconstructions and 1 - 1/N for useless ones.

The search is exact. Squared distances come from blocks of matrix products in float64, ||q - r||^2 = ||q||^2 - 2 q . r + ||r||^2;
reconstructions within the rounding bound of the nearest are compared again by their differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.metrics import Estimate, estimate_rate

MEMORY = 2**28  # bytes that a block of queries may take
ROUNDING = 1e-11  # of ||q||^2 + ||r||^2: thousands of times the rounding of a float64 sum over pixels
NOTHING = -1
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class Tracing:
    """Shares of wrong owners: over all queries, and over those with a reconstruction; `owner` is -1 if no reconstruction is finite.

    `chance` is the share for random guessing. `all_by` and `reconstructed_by` are the same shares per reconstruction
    (`by_cluster`).
    """

    all: Estimate
    reconstructed: Estimate
    chance: float
    participants: int
    owner: Tensor
    all_by: Tensor
    reconstructed_by: Tensor

    __repr__ = short_repr


def nearest(queries: Tensor, reconstructions: Tensor, *, memory: int = MEMORY) -> Tensor:
    """Return for each query the index of the reconstruction with the smallest MSE (the first of several); -1 if there is none.

    Reconstructions without a finite norm are skipped. `memory` bounds the bytes of a block of queries.
    """
    _check(queries, reconstructions)
    pictures = reconstructions.flatten(1).double()
    lengths = pictures.square().sum(1)
    distinct = _first_of_identical(pictures, lengths.isfinite())
    if not len(distinct):
        return torch.full((len(queries),), NOTHING, device=queries.device)
    pictures, lengths = pictures[distinct], lengths[distinct]
    rows = max(1, memory // (8 * (3 * len(pictures) + 2 * pictures.shape[1])))
    blocks = torch.split(queries.flatten(1), rows)
    return distinct[torch.cat([_nearest(block.double(), pictures, lengths, memory) for block in blocks])]


def _first_of_identical(pictures: Tensor, usable: Tensor) -> Tensor:
    """Return the indices of the usable rows that equal no earlier usable row, in order."""
    places = usable.nonzero()[:, 0]
    if len(places) < 2:
        return places
    kinds, kind = torch.unique(pictures[places], dim=0, return_inverse=True)
    first = torch.full((len(kinds),), len(pictures), device=pictures.device)
    return first.scatter_reduce(0, kind, places, "amin").sort().values


def _nearest(block: Tensor, pictures: Tensor, lengths: Tensor, memory: int) -> Tensor:
    """Return the nearest of each query; candidates within rounding of the smallest distance are compared by differences."""
    squares = block.square().sum(1)
    apart = torch.addmm(lengths.expand(len(block), -1), block, pictures.T, alpha=-2)
    slack = (squares[:, None] + lengths).mul_(ROUNDING)
    least, chosen = (apart + slack).min(1)
    close = apart.sub_(slack) <= least[:, None]
    unsure = (close.sum(1) > 1).nonzero()[:, 0]
    if len(unsure):
        chosen[unsure] = _settled(block[unsure], pictures, close[unsure], memory)
    return chosen


def _settled(block: Tensor, pictures: Tensor, close: Tensor, memory: int) -> Tensor:
    """Return the nearest among the close ones, by differences."""
    best = torch.full(close.shape, torch.inf, dtype=torch.float64, device=block.device)
    pairs = close.nonzero()
    for some in torch.split(pairs, max(1, memory // (16 * block.shape[1]))):
        query, number = some.unbind(1)
        best[query, number] = (block[query] - pictures[number]).square().mean(1)
    return best.argmin(1)  # the first of equals


def partition(number: int, participants: int) -> Tensor:
    """Return the owner of each of `number` samples split into equal parts, in order.

    >>> partition(5, 2)
    tensor([0, 0, 0, 1, 1])
    """
    _check_participants(participants)
    return torch.arange(number) * participants // number


def spread(number: int, total: int) -> Tensor:
    """Return `number` indices spread evenly over `total`: which samples to reconstruct, equally from every part.

    >>> spread(3, 9)
    tensor([0, 3, 6])
    """
    if not 1 <= number <= total:
        raise InputError(f"the number of reconstructions must be in 1 .. {total}, got {number}")
    return torch.arange(number) * total // number


def trace(
    queries: Tensor, reconstructions: Tensor, source: Tensor, *, participants: int, memory: int = MEMORY
) -> Tracing:
    """Return how well owners are traced, for queries in equal parts by order; `source[k]` is the query of reconstruction k."""
    return trace_each(queries, reconstructions, source, [participants], memory=memory)[0]


def trace_each(
    queries: Tensor, reconstructions: Tensor, source: Tensor, participants: Sequence[int], *, memory: int = MEMORY
) -> list[Tracing]:
    """Return `trace` for several numbers of participants, from one search."""
    _check(queries, reconstructions)
    _check_source(source, len(queries), len(reconstructions))
    source = source.long()
    for number in participants:
        _check_participants(number)
        _check_parts(source, len(queries), number)
    place = nearest(queries, reconstructions, memory=memory)
    return [_judge(place, source, len(queries), number) for number in participants]


def by_cluster(wrong: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """Return one number per cluster; their mean m is that of all n values, their spread its error between clusters.

        v_k = m + K / n * sum over the values of cluster k of (y - m)

    Queries with the same nearest reconstruction get the same participant, so they are a cluster. (Shares by participant are
    dependent: one reconstruction nearest to everything makes one of them 0 and all others 1, in every draw.)
    """
    value = wrong.double()
    mean = value.mean()
    excess = torch.zeros(clusters, dtype=torch.float64, device=value.device).index_add(0, cluster, value - mean)
    return mean + clusters / len(value) * excess


def _judge(place: Tensor, source: Tensor, number: int, participants: int) -> Tracing:
    owner = partition(number, participants).to(place.device)
    traced = torch.where(place == NOTHING, NOTHING, owner[source[place.clamp_min(0)]])
    wrong, cluster = traced != owner, place.clamp_min(0)
    known = torch.zeros(number, dtype=torch.bool, device=place.device)
    known[source] = True
    return Tracing(
        all=estimate_rate(wrong[:, None], torch.ones_like(wrong)[:, None]),
        reconstructed=estimate_rate(wrong[:, None], known[:, None]),
        chance=1 - 1 / participants,
        participants=participants,
        owner=traced,
        all_by=by_cluster(wrong, cluster, len(source)),
        reconstructed_by=by_cluster(wrong[known], cluster[known], len(source)),
    )


def _check_participants(participants: object) -> None:
    if isinstance(participants, bool) or not isinstance(participants, Integral):
        raise InputError(f"participants must be a whole number of at least 2, got {participants!r}")
    if participants < 2:
        raise InputError(f"participants must be at least 2, got {participants}")


def _check_source(source: object, queries: int, reconstructions: int) -> None:
    if not isinstance(source, Tensor) or source.dtype not in WHOLE:
        kind = source.dtype if isinstance(source, Tensor) else type(source).__name__
        raise InputError(f"source must be a tensor of whole numbers, the query of each reconstruction, got {kind}")
    if source.shape != (reconstructions,) or bool(((source < 0) | (source >= queries)).any()):
        raise InputError(
            f"source must name a query (0 .. {queries - 1}) for each of the {reconstructions} reconstructions"
        )


def _check_parts(source: Tensor, queries: int, participants: int) -> None:
    """Raise for parts without a query, and participants without a reconstruction."""
    if len(source) < participants:
        raise InputError(
            f"tracing among {participants} participants needs a reconstruction of each at least, got {len(source)}"
        )
    if participants > queries:
        raise InputError(f"participants must be at most the number of queries ({queries}), got {participants}")
    held = partition(queries, participants)[source.cpu()].unique()
    if len(held) < participants:
        raise InputError(
            f"tracing among {participants} participants needs a reconstruction of each at least, "
            f"got {len(source)} of {len(held)} of them"
        )


def _check(queries: Tensor, reconstructions: Tensor) -> None:
    if queries.ndim < 2 or queries.shape[1:] != reconstructions.shape[1:]:
        raise InputError(
            f"queries and reconstructions must be stacks of items of one shape, "
            f"got {tuple(queries.shape)} and {tuple(reconstructions.shape)}"
        )
    if not len(queries) or not len(reconstructions):
        raise InputError("tracing needs at least one query and one reconstruction")
    if not bool(queries.isfinite().all()):
        raise InputError("queries hold NaN or infinity")
