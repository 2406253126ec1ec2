"""Scores of sentences against slow versions and the definition."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.metrics.text import bag_recall, rouge_l, rouge_n, score_text

sentence = st.lists(st.integers(0, 3), min_size=1, max_size=7)


def slow_rouge_n(truth: list[int], guess: list[int], n: int) -> float:
    """Take every n-gram of the guess out of a list of the truth's."""
    left = [truth[i : i + n] for i in range(len(truth) - n + 1)]
    wanted, given_grams = len(left), [guess[i : i + n] for i in range(len(guess) - n + 1)]
    common = 0
    for gram in given_grams:
        if gram in left:
            left.remove(gram)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(given_grams), common / wanted
    return 2 * precision * recall / (precision + recall)


def slow_lcs(truth: list[int], guess: list[int]) -> int:
    """Try all subsequences."""
    for size in range(min(len(truth), len(guess)), 0, -1):
        if set(combinations(truth, size)) & set(combinations(guess, size)):
            return size
    return 0


@settings(deadline=None)
@given(truth=sentence, guess=sentence, n=st.integers(1, 3))
def test_rouge_is_that_of_a_slow_version(truth: list[int], guess: list[int], n: int) -> None:
    assert rouge_n(truth, guess, n) == pytest.approx(slow_rouge_n(truth, guess, n))
    common = slow_lcs(truth, guess)
    assert rouge_l(truth, guess) == pytest.approx(2 * common / (len(truth) + len(guess)))
    assert rouge_l(truth, guess) <= rouge_n(truth, guess, 1) + 1e-12


@settings(deadline=None, max_examples=50)
@given(truth=st.lists(sentence, min_size=1, max_size=4), guess=st.lists(sentence, max_size=4))
def test_pairing_has_the_largest_total_and_uses_no_guess_twice(truth: list[list[int]], guess: list[list[int]]) -> None:
    scores = score_text(truth, guess)
    filled = [*guess, *[[]] * len(truth)]
    best = max(
        sum(rouge_n(a, b, 1) for a, b in zip(truth, order, strict=True)) for order in permutations(filled, len(truth))
    )
    assert float(scores.rouge1.sum()) == pytest.approx(best)


@given(truth=st.lists(sentence, min_size=1, max_size=4), seed=st.randoms())
@settings(deadline=None)
def test_the_batch_in_another_order_is_perfect(truth: list[list[int]], seed: object) -> None:
    guess = list(truth)
    seed.shuffle(guess)  # type: ignore[attr-defined]
    scores = score_text(truth, guess)
    assert bool(scores.exact.all())
    assert scores.bag_recall == 1
    assert bool((scores.rouge1 == 1).all())
    assert bool((scores.rouge_l == 1).all())


def test_one_good_guess_serves_one_sentence() -> None:
    scores = score_text([[1, 2, 3], [1, 2, 3]], [[1, 2, 3]])
    assert scores.exact.tolist().count(True) == 1
    assert float(scores.rouge1.mean()) == 0.5


def test_order_matters_to_rouge_2_and_not_to_rouge_1() -> None:
    assert rouge_n([1, 2, 3], [3, 2, 1], 1) == 1
    assert rouge_n([1, 2, 3], [3, 2, 1], 2) == 0


def test_a_bag_is_scored_as_a_set() -> None:
    assert bag_recall([[1, 1, 2], [3]], [1, 3, 9]) == pytest.approx(2 / 3)


def test_no_sentence_is_refused() -> None:
    for truth in ([], [[]]):
        with pytest.raises(InputError):
            score_text(truth, [])
