"""Null baselines of sentences, the scores beside them, and the grade that they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.auditing.attack_runs import LabelReading
from leakscope.auditing.tokens.verdict import grade_text
from leakscope.metrics.interval import Estimate
from leakscope.play.text_baselines import null_guesses
from leakscope.play.text_leak import Mark, TextLeak, score_readings, show_sentence

PUBLIC = torch.tensor([[1, 2, 3], [1, 2, 4]] * 8)


def leak(truth: Tensor, guesses: Sequence[Sequence[tuple[int, ...]]], bag: Bag | None = None) -> TextLeak:
    readings = [(SpanReading(SpanEnd.SENTENCES, tuple(guess), rank=1, width=8, budget=8), bag) for guess in guesses]
    return score_readings(truth, readings, PUBLIC, PUBLIC)


def test_null_baselines_follow_the_public_text() -> None:
    guesses = null_guesses([[1, 2, 3], [5, 2, 4]], [2, 1, 3, 4], PUBLIC, seed=0)
    assert guesses["frequent_tokens"] == [[2, 1, 3]] * 2
    assert all(sentence[:2] == [1, 2] and sentence[2] in (3, 4) for sentence in guesses["bigram"])
    assert {token for sentence in guesses["unigram"] for token in sentence} <= {1, 2, 3, 4}
    assert guesses["nearest_public"] == [[1, 2, 4]] * 2  # a copy of a private sentence is left out
    assert guesses == null_guesses([[1, 2, 3], [5, 2, 4]], [2, 1, 3, 4], PUBLIC, seed=0)


def test_unigrams_are_drawn_as_often_as_they_occur() -> None:
    drawn = torch.tensor(null_guesses([[9, 9, 9]] * 500, [1], PUBLIC, seed=3)["unigram"])
    shares = torch.bincount(drawn.flatten(), minlength=5) / drawn.numel()
    torch.testing.assert_close(shares, torch.tensor([0, 1 / 3, 1 / 3, 1 / 6, 1 / 6]), atol=0.05, rtol=0)


def test_without_public_text_frequent_tokens_are_the_only_baseline() -> None:
    assert [*null_guesses([[1, 2, 3]], [2, 1], PUBLIC[:7], seed=0)] == ["frequent_tokens"]


def test_a_sentence_that_a_baseline_guesses_needed_no_update() -> None:
    truth = torch.tensor([[[1, 2, 3]], [[9, 8, 7]]])  # the first is the most frequent tokens in order
    found = leak(truth, [[(1, 2, 3)], [(9, 8, 7)]])
    assert found.sentences.value == 0.5
    assert found.rouge1.value == 1
    assert {null.name: null.sentences for null in found.nulls}["frequent_tokens"] == 0.5


def test_words_are_marked_in_place_in_the_bag_or_missed() -> None:
    bag = Bag(torch.tensor([3]), exact=True)
    shown = show_sentence(4, [1, 2, 3, 0], (1, 0, 9), bag, words=["nil", "one", "two", "three", *"456789"])
    assert shown.marks == (Mark.PLACE, Mark.MISSED, Mark.BAG, Mark.BAG)
    assert (shown.truth, shown.guess) == (("one", "two", "three", "nil"), ("one", "nil", "9"))


def test_grades_have_the_meaning_of_all_audits() -> None:
    truth = torch.tensor([[[9, 8, 7]] * 2] * 30)
    nothing = leak(truth, [[]] * 30)
    labels = LabelReading("counts", 1.0, 0.5, 30, 0.8, 1.0)
    guessed = replace(labels, share=0.5, low=0.3, high=0.7)
    assert grade_text(nothing) == "A"
    assert grade_text(nothing, guessed) == "A"
    assert grade_text(nothing, labels) == "B"
    assert grade_text(nothing, labels, unfinished=["lamp"]) == "inconclusive"
    assert grade_text(leak(truth, [[]] * 30, Bag(torch.tensor([7, 8]), exact=True)), labels) == "C"
    assert grade_text(leak(truth, [[(7, 8, 9)] * 2] * 30)) == "C"  # closer than every baseline
    assert grade_text(leak(truth[:1, :1], [[(7, 8, 9)]]), unfinished=["lamp"]) == "C"  # one client has no interval


@pytest.mark.parametrize(("share", "grade"), [(0.5, "F"), (0.05, "D"), (0.02, "C")])
def test_the_share_of_whole_sentences_decides_first(share: float, grade: str) -> None:
    found = replace(leak(torch.tensor([[[9, 8, 7]]]), [[]]), sentences=Estimate(share, 0.0, 1.0, 50, 50))
    assert grade_text(found, unfinished=["lamp"]) == grade
