"""Sentences of an encoder, in which every token sees all others: a search over one position at a time.

No prefix can be tested by itself, so DAGER (Petrov et al. 2024, arXiv:2405.15586) tries every combination of the candidates by position,
up to 10^7. Here sentences start at random combinations, and each position in turn takes the candidate with the least mean distance of
all tokens from the later layer's span. A wrong token moves the inputs of all others a little, so the distance falls with every right
one: a few sweeps reach 0. Sentences of every length are searched without padding, which a mask hides from all real tokens. The search
ends when the sentences found explain the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leakscope.attacks.exact.ledger import never
from leakscope.core import random

STARTS = 8  # sentences at once
ROUNDS = 8  # of starts for every length
SWEEPS = 6  # over the positions of a start
MOST_TRIED = 100_000  # sequences run through the network

Sentence = tuple[int, ...]


def search_sentences(
    distance: Callable[[Tensor], Tensor],
    holds: Callable[[Tensor], Tensor],
    candidates: Sequence[Tensor],
    explained: Callable[[Sequence[Sentence]], bool],
    over: Callable[[], bool] = never,
) -> tuple[Sentence, ...]:
    """Return the sentences all of whose tokens the span holds, the closest first.

    `distance` maps N x T tokens to the distances N x T, `holds` to whether they may be true. `explained` says whether sentences explain
    the whole update.
    The search ends when the time is `over`.
    """
    found: dict[Sentence, float] = {}
    tried = 0
    for number in range(ROUNDS):
        for length in range(len(candidates), 0, -1):
            state = _start(candidates[:length], number)
            for _ in range(SWEEPS):
                before = state.clone()
                for place, tokens in enumerate(candidates[:length]):
                    if over():
                        return tuple(sorted(found, key=found.__getitem__))
                    state[:, place] = _closest(distance, state, place, tokens)
                    tried += len(state) * len(tokens)
                off = distance(state)
                ended = holds(state).all(1)
                new = {
                    tuple(row): float(far) for row, far in zip(state[ended].tolist(), off[ended].mean(1), strict=True)
                }
                if new.keys() - found.keys():
                    found |= new
                    if explained(tuple(found)):
                        return tuple(sorted(found, key=found.__getitem__))
                going = ~ended & (state != before).any(1)
                if not bool(going.any()):
                    break
                state = state[going]
            if tried > MOST_TRIED:
                return tuple(sorted(found, key=found.__getitem__))
    return tuple(sorted(found, key=found.__getitem__))


def _start(candidates: Sequence[Tensor], number: int) -> Tensor:
    """Return random combinations of the candidates, STARTS x T."""
    drawn = random.uniform(random.fold(random.key(number), "encoder"), (STARTS, len(candidates)))
    picks = [tokens[(drawn[:, p] * len(tokens)).long()] for p, tokens in enumerate(candidates)]
    return torch.stack(picks, dim=1)


def _closest(distance: Callable[[Tensor], Tensor], state: Tensor, place: int, tokens: Tensor) -> Tensor:
    """Return for every sentence the token at a place with which it stands closest to the span."""
    if len(tokens) == 1:
        return tokens.expand(len(state))
    changed = state.repeat_interleave(len(tokens), 0)
    changed[:, place] = tokens.repeat(len(state))
    return tokens[distance(changed).mean(1).reshape(len(state), len(tokens)).argmin(1)]
