"""Scores of recovered sentences: ROUGE-1, -2 and -L, exact sentences, and the bag of words.

Sentences are sequences of token numbers. ROUGE (Lin 2004) as F-measures:

    ROUGE-n     F of the n-grams that both have, each counted at most as often as in the other
    ROUGE-L     F of the longest common subsequence, LCS / |guess| and LCS / |truth|

A batch has no order, so guesses are paired with true sentences by the assignment of the largest total ROUGE-1: each guess serves
one sentence, and a sentence without a guess scores 0. Guesses beyond the number of sentences are paired with none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.pairing import pair
from leakscope.core.short_repr import short_repr

Sentence = Sequence[int]


@dataclass(frozen=True, slots=True)
class TextScores:
    """Scores of each true sentence (N), by its paired guess, and the recall of the batch's set of tokens."""

    rouge1: Tensor
    rouge2: Tensor
    rouge_l: Tensor
    exact: Tensor
    bag_recall: float
    paired: tuple[tuple[int, ...], ...] = field(
        default=(), repr=False
    )  # the guess of each sentence, () where there is none

    __repr__ = short_repr


def rouge_n(truth: Sentence, guess: Sentence, n: int) -> float:
    """Return the F-measure of n-grams with clipped counts; 0 where one of the two has none.

    >>> rouge_n([1, 2, 3], [1, 2, 4], 1), rouge_n([1, 2, 3], [1, 2, 4], 2)
    (0.6666666666666666, 0.5)
    """
    wanted, given = _grams(truth, n), _grams(guess, n)
    return _f(sum((wanted & given).values()), sum(wanted.values()), sum(given.values()))


def rouge_l(truth: Sentence, guess: Sentence) -> float:
    """Return the F-measure of the longest common subsequence.

    >>> rouge_l([1, 2, 3, 4], [1, 9, 3, 4])
    0.75
    """
    lengths = [0] * (len(guess) + 1)  # of the longest common subsequence with the first j tokens of the guess
    for token in truth:
        corner = 0
        for j, other in enumerate(guess, start=1):
            corner, lengths[j] = lengths[j], corner + 1 if token == other else max(lengths[j], lengths[j - 1])
    return _f(lengths[-1], len(truth), len(guess))


def bag_recall(truth: Iterable[Sentence], tokens: Iterable[int]) -> float:
    """Return the share of the distinct tokens of the sentences that are among `tokens`."""
    wanted = {token for sentence in truth for token in sentence}
    return len(wanted & set(tokens)) / len(wanted)


def score_text(truth: Sequence[Sentence], guess: Sequence[Sentence]) -> TextScores:
    """Return the scores of a batch of sentences."""
    if not truth or not all(truth):
        raise InputError("score_text needs at least one sentence, and in each at least one token")
    size = max(len(truth), len(guess))
    cost = torch.zeros(size, size, dtype=torch.float64)
    for i, sentence in enumerate(truth):
        for j, other in enumerate(guess):  # an exact guess is preferred to one with the same tokens in another order
            cost[i, j] = -rouge_n(sentence, other, 1) - (1e-6 if tuple(sentence) == tuple(other) else 0.0)
    chosen = [guess[j] if j < len(guess) else () for j in pair(cost)[: len(truth)].tolist()]
    pairs = list(zip(truth, chosen, strict=True))
    return TextScores(
        rouge1=torch.tensor([rouge_n(a, b, 1) for a, b in pairs], dtype=torch.float64),
        rouge2=torch.tensor([rouge_n(a, b, 2) for a, b in pairs], dtype=torch.float64),
        rouge_l=torch.tensor([rouge_l(a, b) for a, b in pairs], dtype=torch.float64),
        exact=torch.tensor([tuple(a) == tuple(b) for a, b in pairs]),
        bag_recall=bag_recall(truth, (token for sentence in guess for token in sentence)),
        paired=tuple(tuple(each) for each in chosen),
    )


def _grams(sentence: Sentence, n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sentence[i : i + n]) for i in range(len(sentence) - n + 1))


def _f(common: int, wanted: int, given: int) -> float:
    """Return 2 P R / (P + R) with P = common / given and R = common / wanted."""
    return 2 * common / (wanted + given) if common else 0.0
