"""The scores of trials of sentences agree with those of one batch, and missing or surplus guesses do not change them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics import summarise
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.metrics.text import bag_recall, rouge_l, rouge_n
from leakscope.metrics.text_scoring import score_sentences, text_means

TRUTH = torch.tensor([[[5, 6, 7], [8, 9, 5]], [[2, 2, 3], [4, 6, 8]]]).float()
LABELS = torch.tensor([[0, 1], [1, 1]])
MASK = torch.ones(2, 2, dtype=torch.bool)


@settings(deadline=None)
@given(tokens=st.lists(st.integers(-1, 9), min_size=18, max_size=18))
def test_each_pair_has_the_scores_of_its_two_sentences(tokens: list[int]) -> None:
    guess = torch.tensor(tokens).reshape(2, 3, 3).float()
    scores = score_sentences(TRUTH, LABELS, guess, None, mask=MASK)
    for trial in range(2):
        given_ = [[t for t in each if t > 0] for each in guess[trial].long().tolist()]
        assert len({*scores.pairing[trial].tolist()}) == 2  # a guess serves one sentence
        for sample, true in enumerate(TRUTH[trial].long().tolist()):
            paired = given_[int(scores.pairing[trial, sample])]
            assert scores.text["rouge1"][trial, sample] == rouge_n(true, paired, 1)
            assert scores.text["rouge2"][trial, sample] == rouge_n(true, paired, 2)
            assert scores.text["rouge_l"][trial, sample] == rouge_l(true, paired)
            assert bool(scores.exact[trial, sample]) == (true in given_)  # type: ignore[index]
        recall = bag_recall(TRUTH[trial].long().tolist(), [t for each in given_ for t in each])
        assert float(text_means(scores)["token_recall"][trial]) == pytest.approx(recall)


def test_a_summary_has_the_scores_of_text_and_copies_of_a_sentence_count_each() -> None:
    copies = TRUTH[:, :1].repeat(1, 2, 1)
    guess = torch.cat([TRUTH[:, :1], torch.full_like(TRUTH[:, :1], -1)], dim=1)  # found once
    scores = score_sentences(copies, LABELS, guess, torch.full((2, 2), -1), mask=MASK)
    assert DEFAULT_RULE.recovered(scores).all()
    assert scores.label_correct is None
    summary = summarise(scores, outcomes=torch.tensor([2, 2]), iterations=torch.zeros(2, dtype=torch.int64))
    assert summary.content.value == 1
    assert set(summary.means) == {"rouge1", "rouge2", "rouge_l", "token_recall"}
    assert summary.means["rouge1"].value == 0.5
    assert summary.means["token_recall"].value == 1


def test_sentences_that_are_not_finite_are_not_recovered() -> None:
    guess = TRUTH.clone()
    guess[0, 0, 0] = torch.nan
    assert DEFAULT_RULE.recovered(score_sentences(TRUTH, LABELS, guess, None, mask=MASK)).tolist() == [
        [False, True],
        [True, True],
    ]


@pytest.mark.parametrize("guess", [TRUTH[:, :1], TRUTH[:1], TRUTH[0]])
def test_guesses_that_do_not_fit_are_refused(guess: Tensor) -> None:
    with pytest.raises(InputError):
        score_sentences(TRUTH, LABELS, guess, None, mask=MASK)
