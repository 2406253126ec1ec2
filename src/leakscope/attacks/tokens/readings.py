"""The exact attacks on token networks, as attacks of scenarios: the bag of words and the span test.

Their results are sentences (T x M x L token numbers, M at least the number of samples); places without a token hold `NO_TOKEN`. They
read no labels, so labels are -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from leakscope.attacks.attack import Attack, check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.span_test import SpanReading
from leakscope.attacks.exact.span_test import span_test as read_spans
from leakscope.attacks.null import guessed
from leakscope.attacks.tokens.embedded import find_lookup, read_bag, table_of, token_module
from leakscope.attacks.tokens.token_attacks import TOKEN_ATTACKS
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import take
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Seeds, Shares

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class BagOfWords:
    """Return the tokens whose rows of the embedding moved, each once, in a random order: an update has no counts and no order of them."""

    name: str = "bag_of_words"

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the tokens of every trial, as many sentences as they need."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        lookup = find_lookup(model)
        likely = lookup.tied or known_noise(knowledge) > 0
        keys, bags = random.fold(random.key(list(seeds)), "bag of words"), []
        for trial, key in enumerate(keys):
            bag = read_bag(take(observation.rounds[0], trial), observation.shares, lookup.weight, likely=likely)
            if bag is None:
                raise InputError(f"{self.name} needs the rows of {lookup.weight}, which this client does not send")
            bags.append(bag.tokens[random.permutation(key, len(bag.tokens))].tolist())
        length = model.input_shape[0]
        cut = [[tokens[i : i + length] for i in range(0, len(tokens), length)] for tokens in bags]
        return _sentences(cut, knowledge.samples, length)


@dataclass(frozen=True, slots=True)
class SpanTest:
    """Return the sentences whose inputs lie in the spans of the update (DAGER); those that the update also proves come first."""

    name: str = "span_test"

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the sentences of every trial, and as `learned` how many were found."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        lookup = find_lookup(model)
        vocabulary, length = table_of(observation.rounds[0], lookup).shape[1], model.input_shape[0]
        readings = [
            self._read(model, take(observation, trial), take(knowledge, trial), vocabulary, length)
            for trial in range(len(seeds))
        ]
        ordered = [[*each.proved, *(one for one in each.sentences if one not in each.proved)] for each in readings]
        found = _sentences(ordered, knowledge.samples, length)
        proved = torch.zeros(found.inputs.shape[:2], dtype=torch.bool)
        for trial, reading in enumerate(readings):
            proved[trial, : len(reading.proved)] = True
        all_proved = torch.tensor([len(each.proved) == knowledge.samples for each in readings])
        outcome = found.outcome.masked_fill(all_proved, int(Outcome.PROVED))
        number = torch.tensor([float(len(each.sentences)) for each in readings])
        return replace(found, proved=proved, outcome=outcome, learned={"sentences": number})

    def _read(self, model: Model, seen: Observation, known: Knowledge, vocabulary: int, length: int) -> SpanReading:
        """Return what the test reads off one client's first round; after unknown local training both kinds of search are tried."""
        first, noise, local = seen.rounds[0], known_noise(known), known.local
        steps = 1 if seen.shares is Shares.GRADIENT else None if local is None else local.steps(known.samples)

        def read(closest: int | None) -> SpanReading:
            return read_spans(
                token_module(model),
                first,
                seen.shares,
                vocabulary=vocabulary,
                length=length,
                noise=noise,
                closest=closest,
            )

        if steps is not None:
            return read(known.samples if steps > 1 else None)
        reading = read(None)
        return reading if reading.sentences else read(known.samples)


def bag_of_words() -> BagOfWords:
    """Read the set of tokens off the rows of the embedding that moved.

    Equation: `dL/dE_v = 0` for every token v that is not in the batch; without gradient a row moves by weight decay alone.
    Reference: the first step of FILM, Gupta et al. 2022, arXiv:2205.08514.
    Works when: the embedding is trained and its rows are sent; any batch size and number of local steps.
    Costs: one pass over the rows.
    """
    return BagOfWords()


def span_test() -> SpanTest:
    """Test which sentences have their inputs in the span of the update (DAGER).

    Equation: `dL/dW = sum_t (dL/dy_t) x_t^T`, so its rows lie in the span of the inputs x_t.
    Reference: Petrov et al. 2024, DAGER, arXiv:2405.15586.
    Works when: fewer tokens than the layers are wide (or than adapters have dimensions); one gradient or step, or adapters after local SGD.
    Costs: one matrix product over vocabulary x positions, then a search of prefixes.
    """
    return SpanTest()


def known_noise(known: Knowledge) -> float:
    """Return the largest deviation of noise that the attacker knows of, 0 without."""
    sizes = [known.sigma, *(known.sigma_each or {}).values()]
    return max((float(size.max()) for size in sizes if size is not None), default=0.0)


def _sentences(found: Sequence[Sequence[Sequence[int]]], samples: int, length: int) -> Reconstruction:
    """Return the sentences of T trials as a result, filled up to as many as the longest list has."""
    number = max(samples, *(len(each) for each in found))
    tokens = torch.full((len(found), number, length), float(NO_TOKEN))
    for trial, sentences in enumerate(found):
        for place, sentence in enumerate(sentences):
            tokens[trial, place, : len(sentence)] = torch.tensor(sentence, dtype=tokens.dtype)
    return guessed(tokens, torch.full(tokens.shape[:2], -1))


TEXT_ATTACKS: dict[str, Callable[..., Attack]] = {  # on networks over token numbers
    "bag_of_words": bag_of_words,
    "span_test": span_test,
    **TOKEN_ATTACKS,
}
