"""The bundled sentences, the tokeniser and the generator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.data.loading import BUNDLED, load
from leakscope.data.text import PADDING, UNKNOWN, Words, generate_text, load_text, sentence_set, split_words, words_of


def test_the_bundled_text_is_small_and_has_its_licence_beside_it() -> None:
    assert (BUNDLED / "alice_sonnets.tsv").stat().st_size < 60_000
    licence = (BUNDLED / "alice_sonnets.LICENSE.txt").read_text(encoding="utf-8")
    assert "public domain" in licence
    text = load_text()
    counts = Counter(text.class_names[label] for label in text.labels)
    assert len(text.sentences) == len(set(text.sentences)) >= 300
    assert all(f"{number} " in licence for number in counts.values())
    assert min(counts.values()) > 100
    assert all(sentence.isascii() and split_words(sentence) for sentence in text.sentences)


def test_tokens_are_the_first_words_of_sentences_that_are_long_enough() -> None:
    text = load_text()
    tokens, labels, words = text.tokens(6)
    assert tokens.shape == (len(labels), 6)
    assert int(tokens.min()) > 1  # neither padding nor unknown
    assert int(tokens.max()) < len(words)
    assert words.decode(tokens[0].tolist()) == "from fairest creatures we desire increase"
    assert set(labels.tolist()) == {0, 1}
    with pytest.raises(InputError):
        text.tokens(60)


def test_what_is_encoded_comes_back_but_for_unknown_words_and_the_end() -> None:
    words = words_of(["the cat sat on the mat", "the dog"], most=3)
    assert words.words == (PADDING, UNKNOWN, "the", "cat", "dog")
    coded = words.encode(["The cat -- the dog, who?", ""], 4)
    assert coded.tolist() == [[2, 3, 2, 4], [0, 0, 0, 0]]
    assert words.decode(coded[0].tolist()) == "the cat the dog"
    assert words.encode([], 3).shape == (0, 3)


@pytest.mark.parametrize("given", [("the",), (PADDING, UNKNOWN, "a", "a")])
def test_a_vocabulary_that_is_none_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        Words(given)


@pytest.mark.parametrize("token", [-1, 3])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InputError):
        Words((PADDING, UNKNOWN, "a")).decode([2, token])


def test_generated_sentences_follow_their_seed_and_have_zipf_words() -> None:
    text = generate_text(400, vocabulary=300, seed=1)
    assert text == generate_text(400, vocabulary=300, seed=1)
    assert text.sentences != generate_text(400, vocabulary=300, seed=2).sentences
    nouns = Counter(word for sentence in text.sentences for word in split_words(sentence) if len(word) == 4)
    ranked = [count for _, count in nouns.most_common()]
    assert ranked[0] > 3 * ranked[9]  # the tenth of a kind has a tenth of the chance of the first
    assert len(words_of(text.sentences)) <= 300 + 2 + 6
    assert set(text.labels) == {0, 1, 2}
    assert torch.equal(text.tokens(3)[1], torch.tensor(text.labels))


@pytest.mark.parametrize(("number", "vocabulary"), [(0, 100), (5, 2)])
def test_empty_generators_are_refused(number: int, vocabulary: int) -> None:
    with pytest.raises(InputError):
        generate_text(number, vocabulary=vocabulary)


@pytest.mark.parametrize(("name", "words"), [("alice_sonnets", None), ("grammar", 40)])
def test_a_set_of_sentences_has_two_parts_of_token_numbers(name: str, words: int | None) -> None:
    data = sentence_set(name, length=5, words=words)
    assert (data.kind, data.name, data.input_shape) == ("text", name, (5,))
    tokens = torch.cat([data.pictures("train", slice(None)), data.pictures("test", slice(None))])
    assert torch.equal(tokens, tokens.round())
    assert 1 < tokens.min() <= tokens.max() < len(data.words)
    assert abs(data.size("train") - data.size("test")) <= 1
    assert set(data.labels("test", slice(None)).tolist()) == set(range(data.classes))
    assert load(name).input_shape == (8,)


def test_tokens_outside_the_vocabulary_are_no_data_set() -> None:
    with pytest.raises(InputError, match=r"must lie in 0 \.\. 1"):
        replace(sentence_set(length=5), words=("<pad>", "<unk>"))
