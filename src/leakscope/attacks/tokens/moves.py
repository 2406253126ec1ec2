"""Moves of tokens between iterations (LAMP): no gradient leads from one order of words to another.

Balunovic et al. 2022, arXiv:2202.08827, Section 4.2: exchange two tokens, move one token, move a run of them, or put a prefix at the
end. A move is kept if it lowers `objective + weight * (mean negative log-likelihood of a token)`, the likelihood being that of the
nearest tokens under a language model of the attacker's. The authors try all moves from one sentence and take the best; here a kept
move is the start of the next. We add the exchange of two tokens between sentences of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.engine.state import Value
from leakscope.attacks.priors import GUESS
from leakscope.attacks.tokens.embedded import decode
from leakscope.attacks.view import Facts
from leakscope.core import random
from leakscope.core.tree import Tree

Likelihood = Callable[[Tensor], Tensor]  # sentences (K x L token numbers) -> log-likelihood of each (K)
KINDS = 5


@dataclass(frozen=True, slots=True)
class TokenMoves:
    """`tries` moves after every `every` ticks from tick `first` on; before the first step the best of `starts` fresh guesses.

    `table` (T x V x d) and `possible` (T x V) decode the guess for the `likelihood`, which counts by `weight`.
    """

    table: Tensor
    possible: Tensor
    first: int
    every: int
    tries: int
    starts: int
    weight: float = 0.0
    likelihood: Likelihood | None = None

    def due(self, tick: int) -> bool:
        """Return whether tokens move after so many ticks."""
        return tick == 1 or (tick >= self.first and tick % self.every == 0)

    def __call__(self, unknowns: Tree, facts: Facts, tick: int, value: Value) -> Tree:
        """Return the unknowns with the best order of tokens that was tried, for every trial."""
        keys = random.fold(random.fold(facts.key, "moves"), tick)
        guess = unknowns[GUESS]
        trials, sentences, length = guess.shape[:3]
        tries = self.starts if tick == 1 else self.tries
        drawn = random.uniform(keys, (tries, 5)).cpu()
        best = self.score(guess, unknowns, value)
        for number in range(tries):
            if tick == 1:
                other = random.normal(random.fold(keys, number), guess.shape[1:], guess.dtype)
            else:
                orders = [moved(sentences, length, drawn[t, number].tolist()) for t in range(trials)]
                index = torch.tensor(orders, device=guess.device)
                flat = guess.flatten(1, 2)
                other = flat.gather(1, index[..., None].expand_as(flat)).reshape(guess.shape)
            score = self.score(other, unknowns, value)
            better = score < best
            guess = torch.where(better[:, None, None, None], other, guess)
            best = torch.where(better, score, best)
        return {**unknowns, GUESS: guess}

    def score(self, guess: Tensor, unknowns: Tree, value: Value) -> Tensor:
        """Return what the moves lower, for every trial."""
        mismatch = value({**unknowns, GUESS: guess})
        if self.likelihood is None or not self.weight:
            return mismatch
        tokens = decode(guess, self.table, self.possible)
        return mismatch - self.weight * mean_likelihood(self.likelihood, tokens).to(mismatch)


def mean_likelihood(likelihood: Likelihood, tokens: Tensor) -> Tensor:
    """Return the log-likelihood of a token in T x N x L token numbers, a mean for every trial."""
    each = likelihood(tokens.flatten(0, 1)).reshape(tokens.shape[:2])
    return each.sum(1) / tokens[0].numel()


def moved(sentences: int, length: int, drawn: list[float]) -> list[int]:
    """Return an order of the N x L positions after one move, chosen by five numbers in [0, 1).

    >>> moved(1, 4, [0.0, 0.0, 0.0, 0.99, 0.0])  # exchange the first and the last token
    [3, 1, 2, 0]
    """
    kind, n, i, j, k = (
        int(u * size) for u, size in zip(drawn, (KINDS, sentences, length, length, sentences), strict=True)
    )
    order = list(range(sentences * length))
    sentence = order[n * length : (n + 1) * length]
    if kind == 4:  # exchange with another sentence
        a, b = n * length + i, k * length + j
        order[a], order[b] = order[b], order[a]
        return order
    first, last = min(i, j), max(i, j)
    if kind == 0:  # exchange two tokens
        sentence[i], sentence[j] = sentence[j], sentence[i]
    elif kind == 1:  # move one token
        sentence.insert(j, sentence.pop(i))
    elif kind == 2:  # move a run of tokens
        run = sentence[first : last + 1]
        rest = sentence[:first] + sentence[last + 1 :]
        place = int(drawn[4] * (len(rest) + 1))
        sentence = rest[:place] + run + rest[place:]
    else:  # put a prefix at the end
        sentence = sentence[i:] + sentence[:i]
    order[n * length : (n + 1) * length] = sentence
    return order
