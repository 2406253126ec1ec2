"""Who answers: the right number, each client as often as any other, from the key alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.federated.selection import SELECTIONS, Count, Everyone, Selection, Share


@settings(deadline=None, max_examples=60)
@given(clients=st.integers(1, 40), seed=st.integers(0, 10**9), data=st.data())
def test_answers_are_different_clients_that_exist_and_come_from_the_key(
    clients: int, seed: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, clients))
    share = data.draw(st.floats(0.01, 1))
    replies = data.draw(st.sampled_from([0.2, 1.0]))
    kinds = [Count(number=number, replies=replies), Share(share=share, replies=replies), Everyone(replies=replies)]
    most = [number, max(1, int(share * clients + 0.5)), clients]
    for selection, asked in zip(kinds, most, strict=True):
        chosen = selection.choose(clients, random.key(seed))
        assert list(chosen) == sorted(set(chosen))
        assert set(chosen) <= set(range(clients))
        assert len(chosen) == asked if replies == 1 else len(chosen) <= asked
        assert chosen == selection.choose(clients, random.key(seed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "rate"),
    [
        (Count(number=3), 0.3),
        (Share(share=0.2), 0.2),
        (Everyone(replies=0.1), 0.1),
        (Count(number=5, replies=0.4), 0.2),
    ],
)
def test_every_client_answers_as_often_as_any_other(selection: Selection, rate: float) -> None:
    rounds, clients = 400, 10
    seen = torch.zeros(clients)
    for number in range(rounds):
        seen[list(selection.choose(clients, random.fold(random.key(3), number)))] += 1
    spread = (rounds * rate * (1 - rate)) ** 0.5
    assert (seen - rounds * rate).abs().max() < 4.5 * spread


def test_the_share_of_cpl_is_ten_of_a_hundred_and_a_small_one_is_one() -> None:
    assert len(Share(share=0.1).choose(100, random.key(0))) == 10
    assert len(Share(share=0.1).choose(4, random.key(0))) == 1
    assert len(Share(share=0.5).choose(5, random.key(0))) == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Share(share=0.0), r"Share.share .*got 0.0"),
        (lambda: Share(share=1.5), r"Share.share .*\(0, 1\]"),
        (lambda: Count(number=0), "Count.number .*got 0"),
        (
            lambda: Count(number=2).choose(1, random.key(0)),
            "Count.number .*got 2",
        ),
        (lambda: Everyone(replies=0.0), r"Everyone.replies .*got 0.0"),
        (lambda: Share(replies=float("nan")), r"Share.replies .*\(0, 1\]"),
    ],
)
def test_bad_settings_are_refused(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=said):
        make()


def test_the_table_names_them() -> None:
    assert {"share": Share, "count": Count, "everyone": Everyone} == SELECTIONS
