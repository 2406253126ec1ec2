"""Sentences for token models: a bundled set, a word-level tokeniser, and a generator for any size.

The bundled set are lines of Shakespeare's sonnets and sentences of Alice's Adventures in Wonderland, labelled by their work; both are in
the public domain (`bundled/alice_sonnets.LICENSE.txt`). The generator draws sentences from a small grammar; the k-th word of a kind has a
chance in proportion to 1 / k (Zipf).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.data.dataset import PADDING, Dataset

BUNDLED = Path(__file__).parent / "bundled"
ALICE_SONNETS, GENERATED = "alice_sonnets", "grammar"
UNKNOWN = "<unk>"
WORD = re.compile(r"[a-z']*[a-z][a-z']*")
# fmt: off
GRAMMAR: dict[str, tuple[tuple[str, ...], ...]] = {  # the first rule of a kind is the likeliest
    "sentence": (("group", "verb", "group"), ("group", "verb", "group", "place"), ("place", "group", "verb")),
    "group": (("the", "noun"), ("a", "noun"), ("the", "adjective", "noun"), ("noun", "and", "noun")),
    "place": (("in", "the", "noun"), ("of", "group"), ("to", "the", "adjective", "noun")),
}
LENGTH, NUMBER, WORDS = 8, 3000, 2000  # of a data set: words a sentence, generated sentences, and their vocabulary
SHARES = {"noun": 0.5, "verb": 0.3, "adjective": 0.2}  # of the vocabulary
# fmt: on


@dataclass(frozen=True, slots=True)
class TextSet:
    """Labelled sentences."""

    name: str
    sentences: tuple[str, ...] = field(repr=False)
    labels: tuple[int, ...] = field(repr=False)
    class_names: tuple[str, ...]

    def tokens(self, length: int, *, shortest: int | None = None) -> tuple[Tensor, Tensor, Words]:
        """Return the first `length` words of sentences (M x length), their labels, and the vocabulary.

        Sentences with fewer words than `shortest` (`length` if None) are left out, others that are too short are padded.
        """
        words, least = words_of(self.sentences), length if shortest is None else shortest
        long = [number for number, text in enumerate(self.sentences) if len(split_words(text)) >= least]
        if not long:
            raise InputError(f"{self.name} has no sentence of {least} words")
        labels = torch.tensor([self.labels[number] for number in long])
        return words.encode([self.sentences[number] for number in long], length), labels, words


@dataclass(frozen=True, slots=True)
class Words:
    """A word-level tokeniser: token k is `words[k]`; 0 is padding and 1 every word that it does not know."""

    words: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if self.words[:2] != (PADDING, UNKNOWN) or len(set(self.words)) < len(self.words):
            raise InputError(f"a vocabulary starts with {PADDING}, {UNKNOWN} and holds every word once")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentences: Sequence[str], length: int) -> Tensor:
        """Return the first `length` words of each sentence as token numbers (N x length); shorter ones are padded.

        >>> Words(("<pad>", "<unk>", "the", "cat")).encode(["The cat!", "The black cat sat."], 3)
        tensor([[2, 3, 0],
                [2, 1, 3]])
        """
        numbers = {word: number for number, word in enumerate(self.words)}
        rows = [[numbers.get(word, 1) for word in split_words(text)[:length]] for text in sentences]
        return torch.tensor([row + [0] * (length - len(row)) for row in rows], dtype=torch.int64).reshape(-1, length)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the words of token numbers, without padding."""
        numbers = list(tokens)
        wrong = next((number for number in numbers if not 0 <= number < len(self.words)), None)
        if wrong is not None:
            raise InputError(f"token numbers must lie in 0..{len(self.words) - 1}, got {wrong}")
        return " ".join(self.words[number] for number in numbers if number)


def split_words(text: str) -> list[str]:
    """Return the words of a text in small letters; an apostrophe belongs to its word.

    >>> split_words("Oh dear! I shan't be late.")
    ['oh', 'dear', 'i', "shan't", 'be', 'late']
    """
    return WORD.findall(text.lower())


def words_of(sentences: Iterable[str], most: int | None = None) -> Words:
    """Return the vocabulary of sentences, the most frequent word first; at most `most` words."""
    counts = Counter(word for text in sentences for word in split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return Words((PADDING, UNKNOWN, *ranked[:most]))


def sentence_set(
    name: str = ALICE_SONNETS, *, length: int | None = None, words: int | None = None, shortest: int | None = None
) -> Dataset:
    """Return the first `length` words (8 if None) of the bundled or of generated sentences as a data set.

    Sentences with fewer words are left out, with `shortest` only those with fewer than so many; the others are padded. Every second
    sentence is in the part `test`. `words` is the vocabulary of the generator.
    """
    source = (
        load_text() if name == ALICE_SONNETS else generate_text(NUMBER, vocabulary=WORDS if words is None else words)
    )
    tokens, labels, known = source.tokens(LENGTH if length is None else length, shortest=shortest)
    x, y = tokens.numpy().astype(np.int32), labels.numpy()
    return Dataset(
        name=name, kind="text", x_train=x[::2], y_train=y[::2], x_test=x[1::2], y_test=y[1::2],
        class_names=source.class_names, words=known.words,
    )  # fmt: skip


def load_text() -> TextSet:
    """Return the bundled sentences."""
    lines = (BUNDLED / f"{ALICE_SONNETS}.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines]
    names = tuple(dict.fromkeys(work for work, _ in pairs))
    labels = tuple(names.index(work) for work, _ in pairs)
    return TextSet(ALICE_SONNETS, tuple(text for _, text in pairs), labels, names)


def generate_text(number: int, *, vocabulary: int = 2000, seed: int = 0) -> TextSet:
    """Return `number` sentences of a grammar over `vocabulary` invented words; the label is the rule that made a sentence."""
    if number < 1 or vocabulary < 10:
        raise InputError(
            f"generate_text needs at least 1 sentence and 10 words, got number={number}, vocabulary={vocabulary}"
        )
    draw = np.random.default_rng(seed)
    names = list(_invented(vocabulary))
    lexicon: dict[str, list[str]] = {}
    for kind, share in SHARES.items():
        size = int(share * vocabulary)
        lexicon[kind], names = names[:size], names[size:]

    def grow(symbol: str) -> list[str]:
        options: Sequence[object] = lexicon[symbol] if symbol in lexicon else GRAMMAR.get(symbol, ())
        if not options:
            return [symbol]
        chance = 1 / np.arange(1, len(options) + 1)
        place = int(draw.choice(len(options), p=chance / chance.sum()))
        if symbol in lexicon:
            return [lexicon[symbol][place]]
        return [word for part in GRAMMAR[symbol][place] for word in grow(part)]

    rules = GRAMMAR["sentence"]
    labels = draw.choice(len(rules), size=number)
    sentences = tuple(" ".join(word for part in rules[label] for word in grow(part)) for label in labels)
    return TextSet("grammar", sentences, tuple(labels.tolist()), tuple(" ".join(rule) for rule in rules))


def _invented(number: int) -> Iterable[str]:
    """Return different words of syllables, none of them a word of the grammar."""
    syllables = [a + b for a, b in product("bdfgklmnprsvz", "aeiou")]
    size = 2 if number <= len(syllables) ** 2 else 3
    for count, parts in enumerate(product(syllables, repeat=size)):
        if count == number:
            return
        yield "".join(parts)
