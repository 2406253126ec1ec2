"""Policies that no other beats on both scores, and how much of the plane they rule: for comparing searches at equal cost."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.search.random_search import Candidate


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates for which none is at least as private and as accurate, and better in one; most private first.

    >>> [c.policy for c in front([Candidate("a", 0.3, -80), Candidate("b", 0.2, -90), Candidate("c", 0.3, -85)])]
    ['b', 'a']
    """
    found: list[Candidate] = []
    for each in sorted(candidates, key=lambda c: (c.privacy, -c.accuracy, c.policy)):
        last = found[-1] if found else None
        if last is None or each.accuracy > last.accuracy or _equal(each, last):
            found.append(each)
    return found


def _equal(one: Candidate, other: Candidate) -> bool:
    return (one.privacy, one.accuracy) == (other.privacy, other.accuracy)


def hypervolume(candidates: Sequence[Candidate], reference: Candidate) -> float:
    """Return the area between the front and a reference point: the larger, the better the search.

    Every point of the plane that is worse than some candidate on both scores and better than the reference on both counts
    (Zitzler and Thiele 1998). Candidates that do not beat the reference on both add nothing.

    >>> hypervolume([Candidate("a", 0.2, -80)], Candidate("none", 0.3, -90))
    1.0
    """
    ruling = [c for c in front(candidates) if c.privacy < reference.privacy and c.accuracy > reference.accuracy]
    area, below = 0.0, reference.accuracy
    for each in ruling:  # the front rises in accuracy as privacy gets worse
        area += (reference.privacy - each.privacy) * (each.accuracy - below)
        below = each.accuracy
    return round(area, 12)
