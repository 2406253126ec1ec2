"""A network over token numbers as clients and attacks need it: inputs in floating numbers, and the embedding that reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.ledger import never
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading, span_test
from leakscope.attacks.tokens.embedded import read_bag
from leakscope.attacks.tokens.readings import known_noise
from leakscope.auditing.target import Target, UntestedError
from leakscope.core.errors import InputError, first_line
from leakscope.core.token_layers import EMBEDDINGS, padding_of
from leakscope.core.types import Knowledge, Observation, Round
from leakscope.models.embeddings import check_embeddings
from leakscope.play.text_leak import Reading

NO_CHOICE = "audit(attacks=...) names attacks on images and tables; leave it out for token networks"
KINDS = (torch.int64, torch.int32, torch.int16)


def from_numbers(module: nn.Module) -> nn.Module:
    """Return the network, changed in place, so that it takes tokens in floating numbers, the form in which clients hold their data."""
    module.register_forward_pre_hook(lambda _, args: (args[0].long(), *args[1:]))
    return module


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """The embedding that reads the tokens: its weight's name, its rows, whether another layer uses it too, and the padding token."""

    weight: str
    vocabulary: int
    tied: bool
    padding: int | None = None


def holds_tokens(target: Target) -> bool:
    """Return whether a target is a network with an embedding on M x T whole numbers."""
    inputs, model = target.inputs, target.model
    tokens = isinstance(inputs, Tensor) and inputs.dtype in KINDS and inputs.ndim == 2 and len(inputs) > 0
    return tokens and isinstance(model, nn.Module) and any(isinstance(each, EMBEDDINGS) for each in model.modules())


def find_table(module: nn.Module, inputs: Tensor, words: Sequence[str] | None = None) -> TokenTable:
    """Return the embedding that reads the tokens; refuse tokens and words of another network."""
    check_embeddings(module, type(module).__name__)
    tables = {name: each for name, each in module.named_modules() if isinstance(each, EMBEDDINGS)}
    read: list[str] = []

    def note(name: str, tokens: Tensor) -> None:
        flat = isinstance(tables[name], nn.EmbeddingBag)  # may get all sentences in one line
        if torch.equal(tokens.reshape(-1), inputs[:2].reshape(-1)) and (flat or tokens.ndim > 1):
            read.append(name)

    hooks = [
        table.register_forward_pre_hook(lambda _, args, name=name: note(name, args[0]))
        for name, table in tables.items()
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout draws
            module(inputs[:2])
    except (IndexError, RuntimeError) as problem:
        if tables:
            check_tokens(inputs, max(table.num_embeddings for table in tables.values()))
        raise InputError(f"the model cannot run on these tokens: {first_line(problem)}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not read:
        raise UntestedError("no embedding of the model reads the token numbers themselves")
    table = tables[read[0]]
    check_tokens(inputs, table.num_embeddings)
    if words is not None and len(words) != table.num_embeddings:
        raise InputError(
            f"words must name the embedding's {table.num_embeddings} rows, also rows that no token uses, got {len(words)}"
        )
    uses = sum(value is table.weight for _, value in module.named_parameters(remove_duplicate=False))
    return TokenTable(f"{read[0]}.weight", table.num_embeddings, uses > 1, padding_of(module, table))


def check_tokens(tokens: Tensor, rows: int, what: str = "tokens") -> None:
    """Refuse token numbers outside the vocabulary, such as those of another model's tokeniser."""
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= rows:
        raise InputError(f"{what} must lie in 0..{rows - 1}, the embedding's rows, got {low}..{high}") from None


def read_update(
    module: nn.Module,
    table: TokenTable,
    seen: Observation,
    known: Knowledge,
    length: int,
    closest: int | None,
    over: Callable[[], bool] = never,
) -> Reading:
    """Return what both attacks read off the first round of one client; `known` may hold the size of its noise.

    Once the time is `over`, what was read so far is returned.
    """
    first: Round = seen.rounds[0]
    noise = known_noise(known)
    try:
        reading = span_test(
            module,
            first,
            seen.shares,
            vocabulary=table.vocabulary,
            length=length,
            noise=noise,
            closest=closest,
            over=over,
        )
    except (IndexError, RuntimeError):  # of a network for one length only
        reading = SpanReading(SpanEnd.CANNOT_RUN)
    sent = table.weight in first.sent
    bag = read_bag(first, seen.shares, table.weight, likely=table.tied or noise > 0) if sent else bag_of_span(reading)
    return unpadded(reading, bag, table.padding)


def unpadded(reading: SpanReading, bag: Bag | None, padding: int | None) -> Reading:
    """Return a reading without padding, which a network that does not mask it shows like a word."""
    if padding is None:
        return reading, bag

    def cut(sentences: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        words = (tuple(token for token in each if token != padding) for each in sentences)
        return tuple(dict.fromkeys(each for each in words if each))

    bag = None if bag is None else replace(bag, tokens=bag.tokens[bag.tokens != padding])
    return replace(reading, sentences=cut(reading.sentences), proved=cut(reading.proved)), bag


def bag_of_span(reading: SpanReading) -> Bag | None:
    """Return the tokens in the first span where the test came no further: a bag of words without the embedding's rows."""
    if reading.sentences or not reading.candidates or reading.end is SpanEnd.CUT:
        return None
    return Bag(torch.cat(reading.candidates).unique(), exact=False)
