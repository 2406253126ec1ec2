"""What came back of the sentences of a token model, beside the most frequent tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.metrics.interval import Estimate, estimate_mean, estimate_rate
from leakscope.metrics.text import bag_recall, score_text


@dataclass(frozen=True, slots=True)
class TextLeak:
    """What came back of the sentences of all clients; shares have intervals over clients, `null` scores are of frequent tokens."""

    sentences: Estimate
    rouge1: Estimate
    rouge2: Estimate
    rouge_l: Estimate
    null_rouge1: float
    bag: Estimate | None  # recall of the set of tokens; None: the embedding is not sent
    null_bag: float
    exact_bags: int  # clients whose set of moved rows is proved
    ends: tuple[SpanEnd, ...]
    rank: int
    width: int
    budget: int
    tokens: int  # of one update

    def record(self) -> dict[str, object]:
        """Return the scores as plain data."""
        return asdict(self) | {"ends": [end.name.lower() for end in self.ends]}

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the findings, a line each."""
        bag = (
            "the embedding is not sent"
            if self.bag is None
            else f"{_share(self.bag)} (frequent tokens: {self.null_bag:.2f})"
        )
        ends = ", ".join(f"{number} x {end.value}" for end, number in Counter(self.ends).items())
        return (
            f"span test: {_share(self.sentences)} of sentences whole, ROUGE-1 {self.rouge1.value:.2f} (frequent tokens: "
            f"{self.null_rouge1:.2f}), ROUGE-2 {self.rouge2.value:.2f}, ROUGE-L {self.rouge_l.value:.2f}; {ends}",
            f"span test: {self.tokens} tokens in an update, which spans {self.rank} of {self.width} dimensions; the matrices sent "
            f"can span {self.budget}",
            f"bag of words: share of the client's tokens among the rows that moved: {bag}",
        )


def score_readings(
    truth: Tensor, readings: Sequence[tuple[SpanReading, Bag | None]], sample: Tensor, padding: int | None = None
) -> TextLeak:
    """Return the scores of T clients' sentences (T x N x L) without their padding tokens."""
    frequent = [token for token, _ in Counter(_filled(sample.flatten().tolist(), padding)).most_common()]
    hits, rouge, null, bags, null_bags = [], [], [], [], []
    for padded, (reading, bag) in zip(truth.tolist(), readings, strict=True):
        sentences = [_filled(each, padding) for each in padded]
        found = set(reading.sentences)
        hits.append([tuple(each) in found or tuple(each[:-1]) in found for each in sentences])
        scores = score_text(sentences, reading.sentences)
        rouge.append(torch.stack([scores.rouge1, scores.rouge2, scores.rouge_l]))
        null.append(float(score_text(sentences, [frequent[: truth.shape[2]]] * len(sentences)).rouge1.mean()))
        if bag is not None:
            bags.append(bag_recall(sentences, bag.tokens.tolist()))
            null_bags.append(bag_recall(sentences, frequent[: len(bag.tokens)]))
    every = torch.ones(truth.shape[:2], dtype=torch.bool)
    rouge1, rouge2, rouge_l = (estimate_mean(values, every, within=(0.0, 1.0)) for values in torch.stack(rouge, dim=1))
    recall = torch.tensor(bags, dtype=torch.float64)[:, None]
    spans = [reading for reading, _ in readings]
    return TextLeak(
        sentences=estimate_rate(torch.tensor(hits), every),
        rouge1=rouge1,
        rouge2=rouge2,
        rouge_l=rouge_l,
        null_rouge1=sum(null) / len(null),
        bag=estimate_mean(recall, torch.ones_like(recall).bool(), within=(0.0, 1.0)) if bags else None,
        null_bag=sum(null_bags) / max(1, len(null_bags)),
        exact_bags=sum(bag is not None and bag.exact for _, bag in readings),
        ends=tuple(each.end for each in spans),
        rank=max(each.rank for each in spans),
        width=max(each.width for each in spans),
        budget=max(each.budget for each in spans),
        tokens=truth.shape[1] * truth.shape[2],
    )


def _filled(tokens: list[int], padding: int | None) -> list[int]:
    """Return the tokens that are no padding; all, if there is nothing else."""
    return [token for token in tokens if token != padding] or tokens


def _share(rate: Estimate) -> str:
    return f"{100 * rate.value:.0f} % (95 % interval {100 * rate.low:.0f} % to {100 * rate.high:.0f} %, n = {rate.n})"
