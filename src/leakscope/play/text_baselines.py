"""Null baselines of sentences, which do not see the update: frequent tokens, samples of public text, the nearest public sentence.

They know the number of sentences and their length. Frequent tokens are counted over the whole sample, private sentences included, which
favours the baseline. `nearest_public` also sees the truth, as an oracle: it bounds from above every guesser
that answers with a public sentence. Public sentences equal to one of the same client are left out of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from leakscope.attacks.null import guessed
from leakscope.core.errors import InputError
from leakscope.core.types import Batch, Reconstruction
from leakscope.data.dataset import Dataset, Part
from leakscope.metrics.text import Sentence, rouge_n

LEAST_PUBLIC = 8  # sentences; with fewer there is no public text
MOST_PUBLIC = 1000  # sentences compared with each true one
Guesses = list[list[int]]


def most_frequent(sample: Tensor) -> list[int]:
    """Return the tokens of sentences (M x L), the most frequent first."""
    return [token for token, _ in Counter(sample.flatten().tolist()).most_common()]


def without_padding(tokens: Sequence[int], padding: int | None) -> list[int]:
    """Return the tokens that are no padding; all, if there is nothing else."""
    return [token for token in tokens if token != padding] or list(tokens)


def null_guesses(
    truth: Sequence[Sentence], frequent: Sequence[int], public: Tensor, seed: int, padding: int | None = None
) -> dict[str, Guesses]:
    """Return by name what can be guessed of one client's sentences without its update; without public text frequent tokens only."""
    number, length = len(truth), public.shape[1]
    guesses = {"frequent_tokens": [list(frequent[:length])] * number}
    if len(public) < LEAST_PUBLIC:
        return guesses
    draw = torch.Generator().manual_seed(seed)
    sampled = {"unigram": _unigrams(public, number, draw), "bigram": _bigrams(public.tolist(), number, draw)}
    nearest = _nearest(truth, [without_padding(each, padding) for each in public[:MOST_PUBLIC].tolist()])
    drawn = {name: [without_padding(each, padding) for each in several] for name, several in sampled.items()}
    return guesses | drawn | ({"nearest_public": nearest} if nearest else {})


def guess_sentences(name: str, truth: Batch, data: Dataset, private: Part, seeds: Sequence[int]) -> Reconstruction:
    """Return the named baseline's sentences for every trial; public text and frequent tokens are those of the other part."""
    public = data.pictures("train" if private == "test" else "test", slice(None)).long()
    if len(public) < LEAST_PUBLIC:
        raise InputError(f"null baselines of sentences need {LEAST_PUBLIC} public ones, {data.name} has {len(public)}")
    padding = data.padding
    frequent, guess = without_padding(most_frequent(public), padding), torch.full_like(truth.inputs, padding or 0)
    for trial, (sentences, seed) in enumerate(zip(truth.inputs.long().tolist(), seeds, strict=True)):
        true = [without_padding(each, padding) for each in sentences]
        guesses = null_guesses(true, frequent, public, seed, padding)
        if name not in guesses:
            raise InputError(f"{name} has no public sentence that differs from the private ones")
        for place, tokens in enumerate(guesses[name]):
            guess[trial, place, : len(tokens)] = torch.tensor(tokens).to(guess)
    return guessed(guess.float(), truth.labels)


def _unigrams(public: Tensor, number: int, draw: torch.Generator) -> Guesses:
    """Return sentences of tokens drawn as often as they occur."""
    places = torch.randint(public.numel(), (number, public.shape[1]), generator=draw)
    sentences: Guesses = public.flatten()[places].tolist()
    return sentences


def _bigrams(public: Guesses, number: int, draw: torch.Generator) -> Guesses:
    """Return sentences that start as public ones do, each token drawn from those behind its predecessor, else from all."""
    behind: dict[int, list[int]] = defaultdict(list)
    for sentence in public:
        for first, second in pairwise(sentence):
            behind[first].append(second)
    every = [token for sentence in public for token in sentence]

    def one(options: list[int]) -> int:
        return options[int(torch.randint(len(options), (), generator=draw))]

    sentences = []
    for _ in range(number):
        sentence = [one([each[0] for each in public])]
        while len(sentence) < len(public[0]):
            sentence.append(one(behind.get(sentence[-1]) or every))
        sentences.append(sentence)
    return sentences


def _nearest(truth: Sequence[Sentence], public: Guesses) -> Guesses:
    """Return for each true sentence the public one of the largest ROUGE-1, then ROUGE-2; [] if there are copies only."""
    own = {tuple(sentence) for sentence in truth}
    others = [sentence for sentence in public if tuple(sentence) not in own]

    def closeness(sentence: Sentence) -> Callable[[list[int]], tuple[float, float]]:
        return lambda other: (rouge_n(sentence, other, 1), rouge_n(sentence, other, 2))

    return [max(others, key=closeness(sentence)) for sentence in truth] if others else []
