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

    `table` (T x V x d, in units of the guess) and `possible` (T x V) decode the guess. Tokens move among `real` places (T x N x L) only.
    """

    search: Search
    table: Tensor
    possible: Tensor
    last: int
    real: Tensor | None = None

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
                other = rearranged(guess, drawn[:, number], self.real)
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
            places = [each for sentence in _places(guess, self.real, t) for each in sentence]
            other[t, places[int(place * len(places))]] = self.table[t, tokens[int(token * len(tokens))]]
        return other.reshape(guess.shape)


def rearranged(guess: Tensor, drawn: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the guess (T x N x L x d) after one move of each trial among `real` places, chosen by six numbers (T x 6)."""
    flat = guess.flatten(1, 2)
    moves = [moved(_places(guess, real, t), each) for t, each in enumerate(drawn.tolist())]
    orders = torch.arange(flat.shape[1]).repeat(len(flat), 1)
    for order, move in zip(orders, moves, strict=True):
        order[list(move)] = torch.tensor(list(move.values()))
    orders = orders.to(guess.device)
    return flat.gather(1, orders[..., None].expand_as(flat)).reshape(guess.shape)


def _places(guess: Tensor, real: Tensor | None, trial: int) -> list[list[int]]:
    """Return the real places of every sentence of a trial, counted through the batch."""
    sentences, length = guess.shape[1:3]
    if real is None:
        return [list(range(n * length, (n + 1) * length)) for n in range(sentences)]
    return [[n * length + place for place in each.nonzero()[:, 0].tolist()] for n, each in enumerate(real[trial])]


def moved(places: list[list[int]], drawn: list[float]) -> dict[int, int]:
    """Return which place each place of some sentences gets its token from, after one move chosen by six numbers in [0, 1).

    `places` are those of each sentence's tokens.

    >>> moved([[0, 1, 2, 3]], [0.0, 0.0, 0.0, 0.99, 0.0, 0.0])  # exchange the first and the last token
    {0: 3, 1: 1, 2: 2, 3: 0}
    """
    kind, n, k = int(drawn[0] * KINDS), int(drawn[1] * len(places)), int(drawn[4] * len(places))
    own, other = places[n], places[k]
    i = int(drawn[2] * len(own))
    if kind == 4:  # exchange with another sentence
        a, b = own[i], other[int(drawn[3] * len(other))]
        return {a: b, b: a}
    j = int(drawn[3] * len(own))
    return dict(zip(own, _reordered(list(own), kind, i, j, drawn[5]), strict=True))


def _reordered(sentence: list[int], kind: int, i: int, j: int, drawn: float) -> list[int]:
    """Return the tokens of a sentence after a move within it."""
    first, last = min(i, j), max(i, j)
    if kind == 0:  # exchange two tokens
        sentence[i], sentence[j] = sentence[j], sentence[i]
    elif kind == 1:  # move one token
        sentence.insert(j, sentence.pop(i))
    elif kind == 2:  # move a run of tokens
        run = sentence[first : last + 1]
        rest = sentence[:first] + sentence[last + 1 :]
        place = int(drawn * (len(rest) + 1))
        sentence = rest[:place] + run + rest[place:]
    else:  # put a prefix at the end
        sentence = sentence[i:] + sentence[:i]
    return sentence
