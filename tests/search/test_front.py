"""The front and its area against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.search.candidates import Candidate, front, hypervolume

GRID = st.integers(0, 8)
candidates = st.lists(st.tuples(GRID, GRID), max_size=12).map(
    lambda pairs: [Candidate(str(i), float(p), float(a)) for i, (p, a) in enumerate(pairs)]
)


def beats(one: Candidate, other: Candidate) -> bool:
    at_least = one.privacy <= other.privacy and one.accuracy >= other.accuracy
    return at_least and (one.privacy, one.accuracy) != (other.privacy, other.accuracy)


@given(candidates)
def test_the_front_holds_what_nothing_beats(many: list[Candidate]) -> None:
    slow = {each.policy for each in many if not any(beats(other, each) for other in many)}
    assert {each.policy for each in front(many)} == slow


@given(candidates, GRID, GRID)
def test_the_area_counts_the_cells_that_some_candidate_rules(
    many: list[Candidate], privacy: int, accuracy: int
) -> None:
    reference = Candidate("none", float(privacy), float(accuracy))
    cells = [(x, y) for x in range(privacy) for y in range(accuracy, 9)]
    slow = sum(any(c.privacy <= x and c.accuracy >= y + 1 for c in many) for x, y in cells)
    assert hypervolume(many, reference) == pytest.approx(slow)
