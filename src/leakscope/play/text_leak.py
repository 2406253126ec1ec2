"""What came back of the sentences of a token model, beside the null baselines, and each sentence with its words marked."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.core.short_repr import short_repr
from leakscope.metrics.interval import Estimate, estimate_mean, estimate_rate
from leakscope.metrics.text import Sentence, TextScores, bag_recall, score_text
from leakscope.play.text_baselines import most_frequent, null_guesses, without_padding

SHOWN_LINES = 3
SPAN_TEST = "span test"
Reading = tuple[SpanReading, Bag | None]  # of one client's update; None: the embedding is not sent
SCORES = ("rouge1", "rouge2", "rouge_l")


class Mark(enum.Enum):
    """What came back of a word of a private sentence."""

    PLACE = "in its place"
    BAG = "without its place"
    MISSED = "not recovered"


@dataclass(frozen=True, slots=True)
class ShownSentence:
    """A private sentence with a mark for each word, and the sentence that the attack paired with it; () if there is none.

    `proved` says whether the update certifies that sentence: without it the attacker cannot tell it from a wrong one.
    """

    client: int
    truth: tuple[str, ...] = field(repr=False)
    marks: tuple[Mark, ...]
    guess: tuple[str, ...] = field(repr=False)
    proved: bool = False

    __repr__ = short_repr

    @property
    def certainty(self) -> str:
        """Return in words whether the update certifies the recovered sentence; "" if there is none."""
        return ("proved" if self.proved else "not proved") if self.guess else ""

    @property
    def marked(self) -> list[tuple[Mark, str]]:
        """Return the words of the private sentence with their marks."""
        return list(zip(self.marks, self.truth, strict=True))


@dataclass(frozen=True, slots=True)
class NullText:
    """Scores of a null baseline, means over all sentences: shares of whole ones, and ROUGE."""

    name: str
    sentences: float
    rouge1: float
    rouge2: float
    rouge_l: float


@dataclass(frozen=True, slots=True)
class TextLeak:
    """What came back of the sentences of all clients; shares have intervals over clients.

    `sentences` does not count those that a null baseline guessed too.
    """

    sentences: Estimate
    rouge1: Estimate
    rouge2: Estimate
    rouge_l: Estimate
    nulls: tuple[NullText, ...]
    bag: Estimate | None  # recall of the set of tokens; None: the embedding is not sent
    null_bag: float  # of as many frequent tokens
    exact_bags: int  # clients whose set of moved rows is proved
    ends: tuple[SpanEnd, ...]
    rank: int
    width: int
    budget: int
    tokens: int  # of one update
    shown: tuple[ShownSentence, ...]
    attack: str = SPAN_TEST

    @property
    def cut(self) -> int:
        """Return on how many clients the time ended the span test: what it did not read there may still be in the update."""
        return self.ends.count(SpanEnd.CUT)

    @property
    def null_rouge1(self) -> float:
        """Return the best ROUGE-1 of the null baselines."""
        return max(null.rouge1 for null in self.nulls)

    def record(self) -> dict[str, object]:
        """Return the scores as plain data, without the sentences."""
        plain = {name: value for name, value in asdict(self).items() if name != "shown"}
        return plain | {"ends": [end.name.lower() for end in self.ends]}

    @property
    def score_lines(self) -> tuple[str, ...]:
        """Return the scores of the attack, the null baselines and the bag of words, a line each."""
        bag = "the embedding is not sent" if self.bag is None else f"{_share(self.bag)} (frequent: {self.null_bag:.2f})"
        rouge = (self.rouge1.value, self.rouge2.value, self.rouge_l.value)
        least = "at least " if self.cut and self.attack == SPAN_TEST else ""
        return (
            f"{self.attack}: {least}{_share(self.sentences)} of sentences whole, ROUGE-1, -2, -L {_numbers(rouge)}",
            *(
                f"without the update, {null.name}: ROUGE-1, -2, -L {_numbers((null.rouge1, null.rouge2, null.rouge_l))}"
                for null in self.nulls
            ),
            f"bag of words: share of the client's tokens among those that the update shows: {bag}",
        )

    @property
    def update_lines(self) -> tuple[str, ...]:
        """Return how far the span test came on how many clients, and the tokens of an update against its dimensions."""
        ends = Counter(self.ends).items()
        read = tuple(f"span test, {number} of {len(self.ends)} clients: {end.value}" for end, number in ends)
        if not self.width:
            return read
        return (
            *read,
            f"tokens: {self.tokens} in an update, which spans {self.rank} of {self.width} dimensions; what is sent can span {self.budget}",
        )

    @property
    def shown_lines(self) -> tuple[str, ...]:
        """Return the first sentences and what came back of them, a line each; a dot stands for a word that did not."""
        return tuple(
            f"client {each.client}: {' '.join(each.truth)} -> "
            + " ".join(word if mark is Mark.PLACE else "." for mark, word in each.marked)
            + (f" ({each.certainty})" if each.certainty else "")
            for each in self.shown[:SHOWN_LINES]
        )


def score_readings(
    truth: Tensor,
    readings: Sequence[Reading],
    sample: Tensor,
    public: Tensor,
    *,
    words: Sequence[str] | None = None,
    seed: int = 0,
    padding: int | None = None,
    attack: str = SPAN_TEST,
) -> TextLeak:
    """Return the scores of T clients' sentences (T x N x L) without their padding tokens.

    Null baselines read a sample and those of it that are public (M x L).
    """
    frequent = without_padding(most_frequent(sample), padding)
    scores, hits, bags, null_bags = list[TextScores](), list[Tensor](), [], []
    clients = [[without_padding(each, padding) for each in sentences] for sentences in truth.tolist()]
    nulls: dict[str, list[tuple[TextScores, Tensor]]] = {}
    found = any(bag is not None for _, bag in readings)
    for number, (sentences, (reading, bag)) in enumerate(zip(clients, readings, strict=True)):
        scores.append(score_text(sentences, reading.sentences))
        hit = _whole(sentences, reading.sentences)
        for name, guesses in null_guesses(sentences, frequent, public, seed + number, padding).items():
            guessed = _whole(sentences, guesses)
            nulls.setdefault(name, []).append((score_text(sentences, guesses), guessed))
            hit = hit & ~guessed
        hits.append(hit)
        if bag is not None:
            bags.append(bag_recall(sentences, bag.tokens.tolist()))
            null_bags.append(bag_recall(sentences, frequent[: len(bag.tokens)]))
        elif found and not reading.sentences and reading.end is not SpanEnd.CUT:
            bags.append(0.0)
            null_bags.append(0.0)
    every, recall = torch.ones(truth.shape[:2], dtype=torch.bool), torch.tensor(bags, dtype=torch.float64)[:, None]
    rouge = {
        name: estimate_mean(torch.stack([getattr(each, name) for each in scores]), every, within=(0.0, 1.0))
        for name in SCORES
    }
    spans = [reading for reading, _ in readings]
    return TextLeak(
        sentences=estimate_rate(torch.stack(hits), every),
        rouge1=rouge["rouge1"],
        rouge2=rouge["rouge2"],
        rouge_l=rouge["rouge_l"],
        nulls=tuple(_null(name, several) for name, several in nulls.items()),
        bag=estimate_mean(recall, torch.ones_like(recall).bool(), within=(0.0, 1.0)) if bags else None,
        null_bag=sum(null_bags) / max(1, len(null_bags)),
        exact_bags=sum(bag is not None and bag.exact for _, bag in readings),
        ends=tuple(each.end for each in spans),
        rank=max(each.rank for each in spans),
        width=max(each.width for each in spans),
        budget=max(each.budget for each in spans),
        tokens=truth.shape[1] * truth.shape[2],
        shown=tuple(
            show_sentence(number, sentence, guess, bag, words, proved=guess in reading.proved)
            for number, (client, score, (reading, bag)) in enumerate(zip(clients, scores, readings, strict=True))
            for sentence, guess in zip(client, score.paired, strict=True)
        ),
        attack=attack,
    )


def show_sentence(
    client: int,
    truth: Sentence,
    guess: Sentence,
    bag: Bag | None,
    words: Sequence[str] | None = None,
    *,
    others: Iterable[int] = (),
    proved: bool = False,
) -> ShownSentence:
    """Return a sentence in words, or in token numbers without `words`, each marked by what came back of it.

    `others` are the tokens of the client's other recovered sentences.
    """
    known = {*guess, *others, *(() if bag is None else bag.tokens.tolist())}
    marks = tuple(
        Mark.PLACE if guess[place : place + 1] == (token,) else Mark.BAG if token in known else Mark.MISSED
        for place, token in enumerate(truth)
    )
    spelled, paired = (tuple(_word(token, words) for token in row) for row in (truth, guess))
    return ShownSentence(client, spelled, marks, paired, proved)


def _word(token: int, words: Sequence[str] | None) -> str:
    """Return a token in words; its number without words or if it is none of them, as in a run from elsewhere."""
    return words[token] if words is not None and 0 <= token < len(words) else str(token)


def _whole(sentences: Sequence[Sentence], guesses: Sequence[Sentence]) -> Tensor:
    """Return which sentences are among the guesses, up to a last token."""
    recovered = {tuple(guess) for guess in guesses}
    return torch.tensor([tuple(each) in recovered or tuple(each[:-1]) in recovered for each in sentences])


def _null(name: str, several: Sequence[tuple[TextScores, Tensor]]) -> NullText:
    rouge = (float(torch.stack([getattr(each, score) for each, _ in several]).mean()) for score in SCORES)
    return NullText(name, float(torch.stack([hits for _, hits in several]).double().mean()), *rouge)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _share(rate: Estimate) -> str:
    return f"{100 * rate.value:.0f} % (95 % interval {100 * rate.low:.0f} % to {100 * rate.high:.0f} %, n = {rate.n})"
