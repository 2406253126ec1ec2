"""Label scores against counting by hand."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.metrics import label_correct, label_overlap

LABELS = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 3), min_size=n, max_size=n),
        st.lists(st.integers(-1, 3), min_size=n, max_size=n),
        st.permutations(range(n)),
        st.lists(st.booleans(), min_size=n - 1, max_size=n - 1).map(lambda rest: [True, *rest]),
    )
)
Case = tuple[list[int], list[int], list[int], list[bool]]


@settings(deadline=None)
@given(case=LABELS)
def test_overlap_is_the_multiset_intersection(case: Case) -> None:
    truth, guess, order, _ = case
    overlap = sum((Counter(truth) & Counter(guess)).values()) / len(truth)
    assert float(label_overlap(torch.tensor(truth), torch.tensor(guess))) == torch.tensor(overlap)
    assert label_overlap(torch.tensor(truth)[order], torch.tensor(guess)) == torch.tensor(overlap)
    assert float(label_overlap(torch.tensor(truth), torch.tensor(truth)[order])) == 1.0


@settings(deadline=None)
@given(case=LABELS)
def test_overlap_forgets_padding(case: Case) -> None:
    truth, guess, _, mask = case
    keep = torch.tensor(mask)
    short = label_overlap(torch.tensor(truth)[keep], torch.tensor(guess)[keep])
    assert label_overlap(torch.tensor(truth), torch.tensor(guess), keep) == short


@settings(deadline=None)
@given(case=LABELS)
def test_correct_follows_the_pairing(case: Case) -> None:
    truth, guess, order, _ = case
    found = label_correct(torch.tensor(truth), torch.tensor(guess), torch.tensor(order))
    assert found.tolist() == [truth[i] == guess[order[i]] for i in range(len(truth))]
    assert float(found.double().mean()) <= float(label_overlap(torch.tensor(truth), torch.tensor(guess))) + 1e-6


def test_trials_lead() -> None:
    draw = torch.Generator().manual_seed(0)
    truth, guess = torch.randint(4, (6, 5), generator=draw), torch.randint(4, (6, 5), generator=draw)
    loop = torch.stack([label_overlap(t, g) for t, g in zip(truth, guess, strict=True)])
    assert torch.equal(label_overlap(truth, guess), loop)
    assert torch.equal(torch.func.vmap(label_overlap)(truth, guess), loop)
