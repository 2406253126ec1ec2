"""The scores of many trials of sentences, under the pairing of `score_text`."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics.labels import label_correct, label_overlap
from leakscope.metrics.scoring import Scores
from leakscope.metrics.text import TextScores, score_text

NOTHING = 0  # token numbers up to this one are padding, and no part of a sentence


def score_sentences(
    truth: Tensor, truth_labels: Tensor, guess: Tensor, guess_labels: Tensor | None, *, mask: Tensor
) -> Scores:
    """Return the scores of guessed sentences (T x M x K token numbers, M at least N) for those of T trials (T x N x L).

    `exact` is whether a sentence is among the guesses of its trial, so that copies of one sentence count each. `token_recall` is the
    share of the trial's distinct tokens that any guess holds.
    """
    if truth.ndim != 3 or guess.ndim != 3 or len(guess) != len(truth) or guess.shape[1] < truth.shape[1]:
        raise InputError(f"sentences are T x N x L tokens, got {tuple(truth.shape)} and {tuple(guess.shape)}")
    if not bool(mask.all()):
        raise InputError("clients of sentences hold the same number of them each")
    exact, pairing, text = [], [], []
    for true, guessed in zip(truth.long().tolist(), guess.nan_to_num().long().tolist(), strict=True):
        wanted, given = [words_of(each) for each in true], [words_of(each) for each in guessed]
        scores = score_text(wanted, given)
        exact.append([each in given for each in wanted])
        pairing.append(_places(scores, given))
        text.append(scores)
    none = torch.full(truth.shape[:2], torch.nan, dtype=torch.float64)
    pairs = torch.tensor(pairing)
    labels = None if guess_labels is None or bool((guess_labels < 0).all()) else guess_labels
    return Scores(
        mse=none,
        psnr=none,
        ssim=none,
        label_correct=None if labels is None else label_correct(truth_labels, labels, pairs),
        label_overlap=None if labels is None else label_overlap(truth_labels, labels, mask),
        pairing=pairs,
        scored=mask,
        finite=guess.isfinite().flatten(2).all(-1).gather(1, pairs),
        exact=torch.tensor(exact),
        text={
            **{name: torch.stack([getattr(each, name) for each in text]) for name in ("rouge1", "rouge2", "rouge_l")},
            "token_recall": torch.tensor([[each.bag_recall] * truth.shape[1] for each in text], dtype=torch.float64),
        },
    )


def words_of(tokens: list[int]) -> tuple[int, ...]:
    """Return the tokens of a sentence without padding."""
    return tuple(token for token in tokens if token > NOTHING)


def text_means(scores: Scores) -> dict[str, Tensor]:
    """Return the mean of each score over the sentences of every trial (T)."""
    return {name: value.mean(1) for name, value in scores.text.items()}


def _places(scores: TextScores, guesses: list[tuple[int, ...]]) -> list[int]:
    """Return the place of the guess that each sentence was paired with; each guess serves one sentence."""
    free = list(range(len(guesses)))
    places = []
    for paired in scores.paired:
        place = next(place for place in free if guesses[place] == paired)
        free.remove(place)
        places.append(place)
    return places
