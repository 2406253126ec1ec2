"""Moves of tokens between iterations (LAMP): no gradient leads from one order of words to another.

Balunovic et al. 2022, arXiv:2202.08827, Section 4.2: exchange two tokens, move one token, move a run of them, or put a prefix at the
end. A move is kept if it lowers `objective + weight * (mean negative log-likelihood of a token)`, the likelihood being that of the
nearest tokens under a language model of the attacker's. The authors try all moves from one sentence and take the best; here a kept
move is the start of the next. We add the exchange of two tokens between sentences of the batch, and a last search among whole tokens,
as the discrete steps of GRAB (arXiv:2507.21198): the guess becomes the rows of its nearest tokens, and a move or another possible
token in one position is kept if it lowers the objective alone.
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
from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree

Likelihood = Callable[[Tensor], Tensor]  # sentences (K x L token numbers) -> log-likelihood of each (K)
KINDS = 5


@dataclass(frozen=True, slots=True)
class Search:
    """How many moves: `tries` after every `every` ticks, `starts` fresh guesses, `whole` tokens at the end; see `lamp`."""

    every: int = 75
    tries: int = 200
    starts: int = 500
    whole: int = 0
    perplexity: float = 0.2
    likelihood: Likelihood | None = None

    def __post_init__(self) -> None:
        for name in ("tries", "starts", "whole", "perplexity"):
            if not getattr(self, name) >= 0:
                raise InputError(f"Search.{name} must not be below 0, got {getattr(self, name)}")
        if self.every < 1:
            raise InputError(f"Search.every must be at least 1, got {self.every}")


@dataclass(frozen=True, slots=True)
class TokenMoves:
    """Moves of `search` after every few ticks once a tenth of `last` has passed, the best of fresh guesses before, whole tokens at `last`.

    `table` (T x V x d, in units of the guess) and `possible` (T x V) decode the guess.
    """

    search: Search
    table: Tensor
    possible: Tensor
    last: int

    __repr__ = short_repr

    def due(self, tick: int) -> bool:
        """Return whether tokens move after so many ticks."""
        return tick in (1, self.last) or (tick >= self.last // 10 and tick % self.search.every == 0)

    def __call__(self, unknowns: Tree, facts: Facts, tick: int, value: Value) -> Tree:
        """Return the unknowns with the best order of tokens that was tried, for every trial."""
        keys = random.fold(random.fold(facts.key, "moves"), tick)
        whole, search = tick == self.last, self.search
        tries = search.whole if whole else search.starts if tick == 1 else search.tries
        if not tries:
            return unknowns
        guess = self.nearest_rows(unknowns[GUESS]) if whole else unknowns[GUESS]
        score = self.mismatch if whole else self.score
        drawn = random.uniform(keys, (tries, 6)).cpu()
        best = score(guess, unknowns, value)
        for number in range(tries):
            if tick == 1:
                other = random.normal(random.fold(keys, number), guess.shape[1:], guess.dtype)
            elif whole and number % 2:
                other = self.replaced(guess, drawn[:, number])
            else:
                other = rearranged(guess, drawn[:, number])
            each = score(other, unknowns, value)
            guess = torch.where((each < best)[:, None, None, None], other, guess)
            best = torch.where(each < best, each, best)
        return {**unknowns, GUESS: guess}

    def score(self, guess: Tensor, unknowns: Tree, value: Value) -> Tensor:
        """Return what moves between iterations lower, for every trial."""
        mismatch, likelihood = self.mismatch(guess, unknowns, value), self.search.likelihood
        if likelihood is None or not self.search.perplexity:
            return mismatch
        tokens = decode(guess, self.table, self.possible)
        each = likelihood(tokens.flatten(0, 1)).reshape(tokens.shape[:2])
        return mismatch - self.search.perplexity * each.sum(1).to(mismatch) / tokens[0].numel()

    def mismatch(self, guess: Tensor, unknowns: Tree, value: Value) -> Tensor:
        """Return the objective of every trial."""
        return value({**unknowns, GUESS: guess})

    def nearest_rows(self, guess: Tensor) -> Tensor:
        """Return the rows of the nearest tokens."""
        tokens = decode(guess, self.table, self.possible)
        return torch.stack([rows[each] for rows, each in zip(self.table, tokens, strict=True)])

    def replaced(self, guess: Tensor, drawn: Tensor) -> Tensor:
        """Return the guess with the row of another possible token in one position of each trial."""
        other = guess.flatten(1, 2).clone()
        for t, (_, place, token, *_) in enumerate(drawn.tolist()):
            tokens = self.possible[t].nonzero()[:, 0]
            other[t, int(place * other.shape[1])] = self.table[t, tokens[int(token * len(tokens))]]
        return other.reshape(guess.shape)


def rearranged(guess: Tensor, drawn: Tensor) -> Tensor:
    """Return the guess (T x N x L x d) after one move of each trial, chosen by six numbers (T x 6)."""
    flat = guess.flatten(1, 2)
    orders = torch.tensor([moved(guess.shape[1], guess.shape[2], each) for each in drawn.tolist()], device=guess.device)
    return flat.gather(1, orders[..., None].expand_as(flat)).reshape(guess.shape)


def moved(sentences: int, length: int, drawn: list[float]) -> list[int]:
    """Return an order of the N x L positions after one move, chosen by six numbers in [0, 1).

    >>> moved(1, 4, [0.0, 0.0, 0.0, 0.99, 0.0, 0.0])  # exchange the first and the last token
    [3, 1, 2, 0]
    """
    sizes = (KINDS, sentences, length, length, sentences, length)
    kind, n, i, j, k, _ = (int(u * size) for u, size in zip(drawn, sizes, strict=True))
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
        place = int(drawn[5] * (len(rest) + 1))
        sentence = rest[:place] + run + rest[place:]
    else:  # put a prefix at the end
        sentence = sentence[i:] + sentence[:i]
    order[n * length : (n + 1) * length] = sentence
    return order
