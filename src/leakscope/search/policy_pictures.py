"""What policies do to pictures, step by step, as plain data for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.core import random
from leakscope.data import load
from leakscope.defences.on_data import Transform, apply, parse_policies, picture_keys

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """One policy on pictures: its operations in words, and the pictures (N x C x H x W bytes) before and after each."""

    policy: str
    words: tuple[str, ...]
    steps: tuple[Tensor, ...]


def walks_of(policies: Sequence[str], data: str, *, number: int, seed: int = 0) -> list[Walk]:
    """Return every policy on the first `number` test pictures of a data set; all policies meet the same draws of signs.

    A hybrid is walked policy by policy, each once; 'none' has no step and is left out.
    """
    from leakscope.defences.on_data.applying import to_bytes

    source = load(data)
    first = to_bytes(source.pictures("test", range(min(number, source.size("test")))))
    signs = Transform().draw(picture_keys(random.key(seed), len(first))).signs
    found = []
    for policy in dict.fromkeys(each for text in policies for each in parse_policies(text)):
        steps = [first]
        for place, operation in enumerate(policy.operations):
            steps.append(apply(steps[-1], operation, signs[:, place]))
        found.append(Walk(str(policy), tuple(op.words for op in policy.operations), tuple(steps)))
    return found
