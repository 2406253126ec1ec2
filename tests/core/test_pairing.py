"""Pairing: the cheapest perfect matching, against trying them all."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.pairing import pair, squared_distances

SIZES = st.integers(1, 5)
SEEDS = st.integers(0, 2**31)


def costs(seed: int, size: int) -> Tensor:
    return torch.rand(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def total(cost: Tensor, columns: tuple[int, ...]) -> float:
    return float(sum(cost[row, column] for row, column in enumerate(columns)))


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, size=SIZES)
def test_no_other_matching_is_cheaper(seed: int, size: int) -> None:
    cost = costs(seed, size)
    found = tuple(pair(cost).tolist())
    assert sorted(found) == list(range(size))
    assert total(cost, found) <= min(total(cost, p) for p in itertools.permutations(range(size))) + 1e-12


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, size=SIZES)
def test_a_shuffled_copy_is_put_back(seed: int, size: int) -> None:
    items = torch.rand(size, 3, 4, generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed + 1))
    found = pair(squared_distances(items, items[order]))
    assert torch.equal(items[order][found], items)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, size=SIZES)
def test_reordering_columns_reorders_the_answer(seed: int, size: int) -> None:
    cost = costs(seed, size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed + 1))
    assert torch.equal(order[pair(cost[:, order])], pair(cost))


def test_greedy_would_be_wrong() -> None:
    """The cheapest single pair (0, 0) must be given up for the cheapest whole."""
    assert pair(torch.tensor([[0.0, 1.0], [0.1, 5.0]])).tolist() == [1, 0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_diverged_guess_takes_the_place_that_is_left(bad: float) -> None:
    cost = torch.tensor([[bad, 0.2, 0.9], [bad, 0.9, 0.1], [bad, 0.3, 0.3]])
    assert pair(cost).tolist() == [1, 2, 0]
    assert pair(torch.tensor([[bad, 0.2], [0.3, 0.4]])).tolist() == [1, 0]


def test_answer_is_int64_and_the_cost_is_untouched() -> None:
    cost = torch.tensor([[torch.nan, 1.0], [2.0, 3.0]], requires_grad=True)
    before = cost.detach().clone()
    assert pair(cost).dtype == torch.int64
    assert pair(torch.zeros(1, 1)).tolist() == [0]
    assert torch.equal(cost.detach().nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("shape", [(2, 3), (4,), (1, 2, 2)])
def test_only_square_costs(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="square cost matrix"):
        pair(torch.zeros(shape))


def test_squared_distances_is_the_double_loop() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.rand(3, 2, 4, 4, generator=draw), torch.rand(5, 2, 4, 4, generator=draw)
    slow = torch.tensor([[float(((x - y) ** 2).mean()) for y in b] for x in a])
    torch.testing.assert_close(squared_distances(a, b), slow)
