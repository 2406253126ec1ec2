"""Batches of a label mix: laws over any labels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.data.label_mix import CUTS, cut_batches

LABELS = st.lists(st.integers(0, 5), max_size=60)
SAMPLES = st.integers(1, 9)
every_mix = pytest.mark.parametrize("mix", sorted(CUTS))


@every_mix
@settings(deadline=None, max_examples=60)
@given(labels=LABELS, samples=SAMPLES)
def test_batches_are_full_share_nothing_and_repeat(mix: str, labels: list[int], samples: int) -> None:
    given_labels = torch.tensor(labels, dtype=torch.int64)
    batches = cut_batches(given_labels, samples, mix)
    assert batches == cut_batches(given_labels, samples, mix)
    assert all(len(batch) == samples for batch in batches)
    held = [place for batch in batches for place in batch]
    assert len(set(held)) == len(held)
    assert set(held) <= set(range(len(labels)))


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, samples=SAMPLES)
def test_random_uses_every_example_it_can(labels: list[int], samples: int) -> None:
    assert len(cut_batches(torch.tensor(labels, dtype=torch.int64), samples, "random")) == len(labels) // samples


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, samples=SAMPLES)
def test_equal_has_one_class_a_batch_and_as_many_batches_as_there_can_be(labels: list[int], samples: int) -> None:
    batches = cut_batches(torch.tensor(labels, dtype=torch.int64), samples, "equal")
    assert all(len({labels[place] for place in batch}) == 1 for batch in batches)
    assert len(batches) == sum(number // samples for number in Counter(labels).values())


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, samples=st.integers(2, 9))
def test_two_has_two_classes_a_batch_and_is_empty_only_where_it_must_be(labels: list[int], samples: int) -> None:
    batches = cut_batches(torch.tensor(labels, dtype=torch.int64), samples, "two")
    larger = -(-samples // 2)
    for batch in batches:
        kinds = [labels[place] for place in batch]
        assert len(set(kinds[:larger])) == 1 == len(set(kinds[larger:]))
        assert kinds[0] != kinds[-1]
    able = sum(number >= larger for number in Counter(labels).values())
    assert bool(batches) == (able >= 2)


def test_one_sample_of_two_classes_is_one_of_one() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1])
    assert sorted(cut_batches(labels, 1, "two")) == [(place,) for place in range(5)]


def test_no_mix_is_in_the_order_of_the_data() -> None:
    labels = torch.arange(100) % 10
    for mix in CUTS:
        assert list(cut_batches(labels, 1, mix)) != [(place,) for place in range(100)]


def test_clients_of_an_equal_mix_have_all_the_classes_among_them() -> None:
    labels = torch.arange(400) % 10
    assert {int(labels[batch[0]]) for batch in cut_batches(labels, 4, "equal")[:60]} == set(range(10))


def test_an_unknown_mix_is_told_near_names() -> None:
    with pytest.raises(InputError, match=r"'eqaul'.*'equal'"):
        cut_batches(torch.tensor([0]), 1, "eqaul")
