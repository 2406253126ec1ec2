"""Partitions over clients: every example at most once, from the key alone, and with the proportions they promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.data.partition import IID, PARTITIONS, ByClass, ByWriter, Dirichlet, Partition, _proportions

KEY = random.key(7)


def labels_of(counts: dict[int, int]) -> Tensor:
    """Return so many labels of each class, mixed."""
    flat = torch.tensor([label for label, n in counts.items() for _ in range(n)])
    return flat[random.permutation(random.key(0), len(flat))]


def groups_of(number: int) -> np.ndarray:
    return np.array([40 + 3 * (i * i % 7) for i in range(number)])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Partition, Tensor]:
    """Draw a partition that must work, and labels with gaps among the classes."""
    classes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    labels = labels_of({c: draw(st.integers(1, 12)) for c in classes})
    clients = draw(st.integers(1, len(labels)))
    kinds: list[Partition] = [
        IID(clients=clients, stratified=draw(st.booleans())),
        IID(clients=clients, samples=draw(st.integers(1, len(labels) // clients))),
        Dirichlet(clients=clients, alpha=draw(st.sampled_from([1e-4, 0.1, 0.9, 100.0])), least=len(labels) // clients),
        ByWriter(samples=draw(st.one_of(st.none(), st.integers(1, 3)))),
    ]
    return draw(st.sampled_from(kinds)), labels


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(world=worlds(), seed=st.integers(0, 2**40))
def test_every_example_goes_to_one_client_at_most_and_every_client_has_one(
    world: tuple[Partition, Tensor], seed: int
) -> None:
    partition, labels = world
    groups = groups_of(len(labels))
    shares = partition.split(labels, groups, random.key(seed))
    flat = torch.cat(shares).tolist()
    assert len(set(flat)) == len(flat)
    assert set(flat) <= set(range(len(labels)))
    assert all(len(share) for share in shares)
    if getattr(partition, "samples", None) is None:
        assert len(flat) == len(labels)
    again = partition.split(labels, groups, random.key(seed))
    assert all(torch.equal(a, b) for a, b in zip(shares, again, strict=True))


@pytest.mark.parametrize(
    "partition", [IID(clients=5), Dirichlet(clients=5), ByClass(clients=5, classes=2), ByWriter(clients=2)]
)
def test_another_seed_deals_otherwise(partition: Partition) -> None:
    labels, groups = labels_of({0: 30, 1: 30, 4: 30}), groups_of(90)
    dealt = {tuple(map(tuple, (s.tolist() for s in partition.split(labels, groups, random.key(k))))) for k in range(8)}
    assert len(dealt) > 3


# -- IID


@pytest.mark.parametrize("stratified", [False, True])
def test_iid_sizes_differ_by_one_at_most(stratified: bool) -> None:
    shares = IID(clients=7, stratified=stratified).split(labels_of({0: 20, 1: 13}), None, KEY)
    assert sorted(map(len, shares)) == [4, 4, 5, 5, 5, 5, 5]


def test_iid_clients_look_like_the_whole() -> None:
    labels = labels_of({0: 4000, 1: 1000})
    rates = [float((labels[share] == 1).float().mean()) for share in IID(clients=10).split(labels, None, KEY)]
    assert max(abs(rate - 0.2) for rate in rates) < 5 * (0.16 / 500) ** 0.5
    assert len(set(rates)) > 1


def test_stratified_clients_have_equally_many_of_each_class() -> None:
    labels = labels_of({0: 40, 1: 41, 5: 43})
    shares = IID(clients=8, stratified=True).split(labels, None, KEY)
    for label in (0, 1, 5):
        counts = [int((labels[share] == label).sum()) for share in shares]
        assert max(counts) - min(counts) <= 1


def test_iid_with_samples_cuts_a_stratified_share_at_random() -> None:
    labels = labels_of({0: 500, 1: 500})
    shares = IID(clients=10, samples=40, stratified=True).split(labels, None, KEY)
    assert all(len(share) == 40 for share in shares)
    assert abs(float((labels[torch.cat(shares)] == 1).float().mean()) - 0.5) < 0.1


def test_one_sample_clients() -> None:
    labels = labels_of({0: 3, 1: 3})
    for partition in (IID(clients=6), Dirichlet(clients=6)):
        assert sorted(torch.cat(partition.split(labels, None, KEY)).tolist()) == list(range(6))


# -- Dirichlet


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.9, 20.0])
def test_proportions_are_those_of_the_dirichlet_distribution(alpha: float) -> None:
    """A coordinate of Dir(a, ..., a) over k is Beta(a, (k - 1) a)."""
    draws = torch.stack([_proportions(random.key(i), alpha, 4) for i in range(200)])
    torch.testing.assert_close(draws.sum(1), torch.ones(200, dtype=torch.float64))
    for column in range(4):
        assert stats.kstest(draws[:, column].numpy(), stats.beta(alpha, 3 * alpha).cdf).pvalue > 1e-4


def test_a_small_alpha_gives_each_class_to_one_client_and_a_large_one_to_all() -> None:
    labels = labels_of(dict.fromkeys(range(5), 200))

    def largest_share(alpha: float) -> float:
        shares = Dirichlet(clients=10, alpha=alpha).split(labels, None, KEY)
        counts = torch.stack([torch.bincount(labels[s], minlength=5) for s in shares]).double()
        return float((counts.amax(0) / counts.sum(0)).mean())

    assert largest_share(1e-3) > 0.9
    assert largest_share(1000.0) < 0.15
    assert largest_share(1e-3) > largest_share(0.5) > largest_share(1000.0)


def test_nobody_is_left_with_less_than_the_least() -> None:
    shares = Dirichlet(clients=20, alpha=0.01, least=3).split(labels_of({0: 40, 1: 40}), None, KEY)
    assert min(map(len, shares)) == 3


# -- by class


@settings(deadline=None, max_examples=60)
@given(
    counts=st.dictionaries(st.integers(0, 9), st.integers(12, 30), min_size=2, max_size=6),
    clients=st.integers(1, 12),
    data=st.data(),
)
def test_clients_hold_so_many_classes_and_a_class_is_dealt_evenly(
    counts: dict[int, int], clients: int, data: st.DataObject
) -> None:
    classes = data.draw(st.integers(1, len(counts)))
    labels = labels_of(counts)
    shares = ByClass(clients=clients, classes=classes).split(labels, None, KEY)
    flat = torch.cat(shares).tolist()
    assert len(set(flat)) == len(flat)
    assert all(len(labels[share].unique()) == classes for share in shares)
    holders = torch.zeros(10, dtype=torch.long)
    for label in counts:
        held = [n for share in shares if (n := int((labels[share] == label).sum()))]
        holders[label] = len(held)
        assert not held or (max(held) - min(held) <= 1 and sum(held) == counts[label])
    assert max(holders[list(counts)]) - min(holders[list(counts)]) <= 1


# -- by writer


def test_a_client_is_a_writer() -> None:
    groups = groups_of(50)
    shares = ByWriter().split(torch.zeros(50, dtype=torch.long), groups, KEY)
    assert [set(groups[share.numpy()]) for share in shares] == [{g} for g in np.unique(groups)]
    assert all(share.tolist() == sorted(share.tolist()) for share in shares)


def test_writers_are_chosen_cut_and_left_out() -> None:
    groups = np.array([1] * 5 + [2] * 2 + [3] * 4 + [9] * 3)
    shares = ByWriter(clients=2, least=3, samples=2).split(torch.zeros(14, dtype=torch.long), groups, KEY)
    firsts = {1: [0, 1], 3: [7, 8], 9: [11, 12]}
    assert len(shares) == 2
    assert all(share.tolist() in firsts.values() for share in shares)


def test_the_writers_of_mnist(data_directory: Path) -> None:
    data = load("mnist", data_directory)
    shares = ByWriter().split(torch.from_numpy(data.y_train.copy()), data.groups_train, KEY)
    assert len(shares) == 539
    assert (min(map(len, shares)), max(map(len, shares))) == (2, 32)
    assert sum(map(len, shares)) == 10_000


# -- bad input

LABELS = labels_of({0: 6, 1: 4})


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        (IID(clients=11), r"IID.clients .*got 11"),
        (IID(clients=3, samples=4), r"IID.samples .*got 4"),
        (Dirichlet(clients=11), r"Dirichlet.clients .*got 11"),
        (Dirichlet(clients=4, least=3), r"at least 3 .*got 4"),
        (ByClass(clients=11), r"ByClass.clients .*got 11"),
        (ByClass(clients=2, classes=3), r"ByClass.classes .*got 3"),
        (ByClass(clients=10), r"ByClass .*client \d+ "),
        (ByWriter(), r"ByWriter .*writers"),
    ],
)
def test_what_cannot_be_dealt_is_told_in_one_line(partition: Partition, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        partition.split(LABELS, None, KEY)
    assert "\n" not in str(error.value)


def test_more_writers_than_there_are() -> None:
    with pytest.raises(InputError, match=r"2 writers .*got 3"):
        ByWriter(clients=3, least=2).split(LABELS, np.array([1] * 4 + [2] * 5 + [3]), KEY)
    with pytest.raises(InputError, match=r"0 writers .*got none"):
        ByWriter(least=9).split(LABELS, np.arange(10), KEY)


@pytest.mark.parametrize("make", [lambda: IID(clients=0), lambda: ByWriter(clients=0), lambda: ByClass(clients=2.5)])
def test_numbers_of_clients_are_whole(make: object) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=r"clients must\b"):
        make()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_is_positive(alpha: float) -> None:
    with pytest.raises(InputError, match=r"Dirichlet\.alpha must\b"):
        Dirichlet(clients=2, alpha=alpha)


def test_the_table_names_them_all() -> None:
    assert {"iid": IID, "dirichlet": Dirichlet, "by_class": ByClass, "by_writer": ByWriter} == PARTITIONS
