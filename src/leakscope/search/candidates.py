"""Candidate policies with their scores: drawn at random, selected, and compared between searches.

Gao et al. 2021, "[Re] ... automatic transformation search", section 3.1: C_max random policies, rejection by S_acc, the n best by
S_pri. In a hybrid of those selected each image draws one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.defences.on_data import OPERATIONS, Policy
from leakscope.defences.on_data.policy import LONGEST


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with its scores: `privacy` (lower is better), `accuracy` (higher is better in the authors' form)."""

    policy: str
    privacy: float
    accuracy: float


def draw_policies(number: int, seed: int, *, shortest: int = LONGEST, longest: int = LONGEST) -> list[str]:
    """Return `number` distinct random policies with uniform length in shortest..longest; a larger `number` only appends.

    >>> draw_policies(2, 0) == draw_policies(5, 0)[:2]
    True
    """
    if not 1 <= shortest <= longest <= LONGEST:
        raise InputError(
            f"policy lengths must satisfy 1 <= shortest <= longest <= {LONGEST}, got {shortest}, {longest}"
        )
    policies = sum(len(OPERATIONS) ** length for length in range(shortest, longest + 1))
    if not 1 <= number <= policies // 2:
        raise InputError(f"the number of random policies must be in 1..{policies // 2} for these lengths, got {number}")
    drawn: dict[str, None] = {}
    key = random.fold(random.key(seed), "random policies")
    block = 0
    while len(drawn) < number:
        uniform = random.uniform(random.fold(key, block), (256, LONGEST + 1))
        lengths = shortest + (uniform[:, 0] * (longest - shortest + 1)).long()
        indices = (uniform[:, 1:] * len(OPERATIONS)).long()
        for length, row in zip(lengths.tolist(), indices.tolist(), strict=True):
            drawn.setdefault(str(Policy(tuple(row[:length]))))
        block += 1
    return list(drawn)[:number]


@dataclass(frozen=True, slots=True)
class Selection:
    """The n best policies that pass the threshold, their hybrid, and the number rejected."""

    kept: tuple[Candidate, ...]
    rejected: int

    @property
    def hybrid(self) -> str:
        """Return the hybrid of the kept policies; 'none' if there are none."""
        return "+".join(each.policy for each in self.kept) or "none"


def select(candidates: Sequence[Candidate], *, threshold: float | None, keep: int) -> Selection:
    """Return the `keep` most private candidates whose accuracy score reaches the threshold (None: no threshold)."""
    if keep < 1:
        raise InputError(f"keep must be at least 1, got {keep}")
    passed = [each for each in candidates if threshold is None or each.accuracy >= threshold]
    best = sorted(passed, key=lambda each: (each.privacy, each.policy))[:keep]
    return Selection(tuple(best), len(candidates) - len(passed))


def share_worse_on_both(candidates: Sequence[Candidate], reference: Candidate) -> float:
    """Return the share of candidates that are less private AND less accurate than a reference, such as no policy."""
    if not candidates:
        return math.nan
    worse = [each.privacy > reference.privacy and each.accuracy < reference.accuracy for each in candidates]
    return sum(worse) / len(worse)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the Pareto front of the candidates, most private first.

    >>> [c.policy for c in front([Candidate("a", 0.3, -80), Candidate("b", 0.2, -90), Candidate("c", 0.3, -85)])]
    ['b', 'a']
    """
    best: list[Candidate] = []
    for each in sorted(candidates, key=lambda c: (c.privacy, -c.accuracy, c.policy)):
        last = best[-1] if best else None
        if last is None or each.accuracy > last.accuracy or _equal(each, last):
            best.append(each)
    return best


def _equal(one: Candidate, other: Candidate) -> bool:
    return (one.privacy, one.accuracy) == (other.privacy, other.accuracy)


def hypervolume(candidates: Sequence[Candidate], reference: Candidate) -> float:
    """Return the area between the front and a reference point (Zitzler and Thiele 1998): larger is better.

    >>> hypervolume([Candidate("a", 0.2, -80)], Candidate("none", 0.3, -90))
    1.0
    """
    better = [c for c in front(candidates) if c.privacy < reference.privacy and c.accuracy > reference.accuracy]
    area, below = 0.0, reference.accuracy
    for each in better:  # the front rises in accuracy as privacy gets worse
        area += (reference.privacy - each.privacy) * (each.accuracy - below)
        below = each.accuracy
    return round(area, 12)
