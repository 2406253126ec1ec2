"""Sentences of a batch by the span test on a transformer's dense layers.

Petrov et al. 2024 (DAGER), arXiv:2405.15586. For y = W x the gradient of W is `sum_j (dL/dy_j) x_j^T`: its rows lie in the span of
the inputs x_j of all tokens of the batch. If tokens are fewer than the width, a wrong input lies outside.

1. The first dense layers behind the embedding read one token and its position: e(v, p). Every vocabulary x position pair is tested,
   by one product with a basis V of the span: |e - V V^T e| / |e| below a limit. Embedding plus position is additive,
   so (v, q) is in the span with (v, p), (w, p) and (w, q): some pairs pass that are not in the batch.
2. A later layer reads a token after those before it. From the first position on, each prefix is extended by all candidates and kept
   if the last token's input lies in that layer's span. A prefix without extension is a sentence. In an encoder, where a token sees
   all others, whole sentences are searched (`encoder_search`).

Ranks and limits come from rounding and known noise alone, of spectral norm E: singular values above it count, and a true input x may
stand off the span by `E |S^-1 V^T x|`, little unless its directions are weak (`Span.holds`). The later layer is, of those with the
highest rank, the one whose span leaves most room: in a classifier of two blocks the second block's projections have too low a rank.
Where singular values near the rounding are left over, as in an encoder's float32 update, the first span may lack true tokens: then
those whose row of the embedding moved are tried in every position.

The same holds for the inner factors of low-rank adapters, `dL/dA = s B^T (dL/dy) x^T`, whose span has at most r x modules dimensions
(`budget`). If all before it is frozen, the first span does not move in local SGD. Those of later layers do, so no limit holds there
and the closest prefixes are kept (`closest`). Adam's updates and dropout on the embedding leave no true input in the span. Copies of
a sentence are found as one.

A sentence that ends in the span may still be false: a wrong token fits once, and no token after it does. So the inputs of all sentences
found are compared with the update's rows (`proved_sentences`): those without which the update is not explained are proved.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.dense_readers import (
    SharedInput,
    TokenNetwork,
    check_update,
    find_shared_inputs,
    token_network,
)
from leakscope.attacks.exact.encoder_search import search_sentences
from leakscope.attacks.exact.ledger import never
from leakscope.attacks.exact.masked_span import find_atoms, find_masked, join_atoms, subspace, tokens_that_moved
from leakscope.attacks.exact.sentence_proof import MOST_PROVED, explains, proved_sentences
from leakscope.attacks.exact.spans import MOST_OFF, Span, span_of
from leakscope.core.errors import InputError, first_line
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, to
from leakscope.core.types import Round, Shares, direction

ROOM = 8  # dimensions that a span must leave free, so that no wrong input fits by chance
CHUNK = {"cpu": 2**22, "cuda": 2**27}  # numbers of a layer's input at once
NEAR = 4  # groups of layers behind the first attention that are tried before all others
MOST_PREFIXES = 512  # kept at a position


class SpanEnd(enum.Enum):
    """How far a span test came."""

    SENTENCES = "sentences in the spans"
    CLOSEST = "sentences closest to a span that moved in local steps"
    MASKED = "sentences in the spans, with the masks of dropout solved for"
    MASKED_TOKENS = "tokens by position, with the masks of dropout solved for"
    TOKENS = "tokens by position; no later layer has a span that distinguishes sentences"
    NO_LAYER = "no trained dense layer reads single tokens"
    CANNOT_RUN = "the network does not run on the sentences that the test tries, such as shorter ones"
    NO_UPDATE = "the first dense layers have no update"
    NO_ROOM = "the update of the first dense layers spans all their inputs"
    NOTHING = "no token lies in the span"
    CUT = "the time ended the test"


@dataclass(frozen=True, slots=True)
class SpanReading:
    """What the span test read off one update.

    `proved` are the sentences that the update needs (`proved_sentences`); a false one is never among them. Sentences that the proved
    ones make superfluous are left out of `sentences`.
    `candidates` holds the tokens in the first span for every position, up to the first position without any. `rank` is the
    dimension of that span, `width` of the inputs, `budget` the most dimensions that the sent matrices can span; `checked` names the
    later layer.
    """

    end: SpanEnd
    sentences: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    candidates: tuple[Tensor, ...] = ()
    rank: int = 0
    width: int = 0
    budget: int = 0
    checked: str | None = None
    proved: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    __repr__ = short_repr


def span_test(
    module: nn.Module,
    seen: Round,
    shares: Shares,
    *,
    vocabulary: int,
    length: int,
    noise: float = 0.0,
    closest: int | None = None,
    over: Callable[[], bool] = never,
) -> SpanReading:
    """Return the sentences of at most `length` tokens in one client's update of `module` (a `Round` without trial dimension).

    `noise` is the deviation of noise that was added to every number, if known. `closest` is the number of sentences to look for after
    several local steps. Once the time is `over`, what was read so far is returned, with the end `CUT`: it is a lower bound.
    """
    ended = False

    def noted() -> bool:
        nonlocal ended
        ended = over() or ended
        return ended

    reading = _span_test(module, seen, shares, vocabulary, length, noise, closest, noted)
    return replace(reading, end=SpanEnd.CUT) if ended else reading


def _span_test(
    module: nn.Module, seen: Round, shares: Shares, vocabulary: int, length: int, noise: float, closest: int | None,
    over: Callable[[], bool],
) -> SpanReading:  # fmt: skip
    """Return what `span_test` reads; of a reading that the time ended the end says how far it came."""
    check_update(seen)
    network = token_network(module, seen.before)
    seen = to(seen, device=network.device)
    update = direction(seen, shares)
    try:
        sources = find_shared_inputs(network, update.keys(), vocabulary, length)
        network.read(torch.full((1, length), vocabulary - 1), [each.layer for each in sources[:1]])
    except (IndexError, RuntimeError) as problem:
        raise InputError(f"the network cannot read {length} tokens below {vocabulary}: {first_line(problem)}") from None
    first = next((each for each in sources if each.causal and not each.mixes), None)
    if first is None:
        return SpanReading(SpanEnd.NO_LAYER)
    rounded = seen.before if shares is Shares.WEIGHTS else None
    span = span_of(first, update, rounded, noise)
    if closest is not None:  # each step has rounded
        span = replace(span, error=math.inf)
    sizes = (span.rank, first.width, min(first.width, len(first.rows(update))))
    if span.rank == 0 or span.room < ROOM:
        return SpanReading(SpanEnd.NO_ROOM if span.rank else SpanEnd.NO_UPDATE, (), (), *sizes)
    candidates = _candidates(network, span, vocabulary, length, over)
    if over():
        return SpanReading(SpanEnd.CUT, (), candidates, *sizes)
    words = tokens_that_moved(module, update, vocabulary)
    unsure = span.unsure and closest is None and len(words) < vocabulary
    if not candidates:
        masked = _masked_reading(
            module, network, sources, span, update, rounded, noise, vocabulary, length, sizes, over
        )
        if not unsure or masked.end is not SpanEnd.NOTHING:
            return masked
    possible = (words,) * length if unsure else candidates
    later = [each for each in sources if each.mixes]
    check = _later_layer(later[:NEAR], update, rounded, noise)
    if check is None or check.rank < span.rank:
        check = _later_layer(later, update, rounded, noise)
    if check is None:
        return SpanReading(SpanEnd.TOKENS, (), candidates, *sizes)
    grow = _sentences if check.source.causal else _whole_sentences
    sentences = grow(network, check, possible, closest, over)
    proved: tuple[tuple[int, ...], ...] = ()
    if closest is None and check.source.causal and len(sentences) > MOST_PROVED:
        others = [each for each in later if each.causal and each != check.source]
        for span in (span_of(each, update, rounded, noise) for each in others):
            if span.rank >= check.rank and span.room >= ROOM:
                sentences = _cut_outside(network, span, sentences)
    if closest is None:
        given = (network, check.source, check.rows, check.proof_floor, sentences, possible)
        sentences, proved = proved_sentences(*given, over)
    end = SpanEnd.TOKENS if not sentences else SpanEnd.SENTENCES if closest is None else SpanEnd.CLOSEST
    return SpanReading(end, sentences, candidates, *sizes, check.source.layer, proved)


def _masked_reading(
    module: nn.Module, network: TokenNetwork, sources: Sequence[SharedInput], span: Span, update: Tree, rounded: Tree | None,
    noise: float, vocabulary: int, length: int, sizes: tuple[int, int, int],
    over: Callable[[], bool],
) -> SpanReading:  # fmt: skip
    """Return what can be read where the first span holds no token: those whose embedding a dropout has masked."""
    example = (vocabulary // 2 + torch.arange(length)).remainder(vocabulary)[None]
    masked = find_masked(module, network, span.source, example)
    if masked is None:
        return SpanReading(SpanEnd.NOTHING, (), (), *sizes)
    where = subspace(network, masked, span.basis, span.limit)
    atoms = find_atoms(network, masked, where, tokens_that_moved(module, update, vocabulary), length, span.rank, over)
    places = [[each for each in atoms if each.place == place] for place in range(length)]
    number = next((place for place, each in enumerate(places) if not each), length)
    if not number:
        return SpanReading(SpanEnd.NOTHING, (), (), *sizes)
    candidates = tuple(torch.tensor([each.token for each in place]).unique() for place in places[:number])
    sentences, checked = tuple[tuple[int, ...], ...](), None
    if len(atoms) == number:
        sentences = (tuple(each.token for (each,) in places[:number]),)
    for source in sources if len(atoms) > number else ():
        second = find_masked(module, network, source, example) if source.mixes and source.causal else None
        later = None if second is None else span_of(source, update, rounded, noise)
        if second is None or later is None or not later.rank or later.room < ROOM:
            continue
        room, checked = subspace(network, second, later.basis, later.limit), source.layer
        sentences = join_atoms(network, masked, second, room, atoms, MOST_PREFIXES, over)
        break
    end = SpanEnd.MASKED if sentences else SpanEnd.MASKED_TOKENS
    return SpanReading(end, sentences, candidates, *sizes, checked)


def _later_layer(sources: Sequence[SharedInput], update: Tree, rounded: Tree | None, noise: float) -> Span | None:
    """Return the span that tells sentences apart best; None if none leaves room."""
    spans = (span_of(each, update, rounded, noise) for each in sources)
    usable = (each for each in spans if each.rank and each.room >= ROOM)
    return max(usable, key=lambda each: (each.source.causal, each.rank, each.room), default=None)


def _candidates(
    network: TokenNetwork, span: Span, vocabulary: int, length: int, over: Callable[[], bool]
) -> tuple[Tensor, ...]:
    """Return the tokens in the span for each position, up to the first position without any."""
    hits = []
    for part in _parts(torch.arange(vocabulary, device=network.device)[:, None].expand(-1, length), span):
        if over():
            break
        (inputs,) = network.read(part, [span.source.layer])
        hits.append(span.holds(inputs))
    if not hits:
        return ()
    held = torch.cat(hits)
    number = int(held.any(0).long().cumprod(0).sum())
    return tuple(held[:, p].nonzero()[:, 0] for p in range(number))


def _parts(tokens: Tensor, span: Span) -> tuple[Tensor, ...]:
    """Return N x T tokens in parts that fit into memory."""
    most = CHUNK.get(tokens.device.type, CHUNK["cpu"])
    parts: tuple[Tensor, ...] = tokens.split(max(1, most // (tokens.shape[1] * span.source.width)))
    return parts


def _sentences(
    network: TokenNetwork, check: Span, candidates: Sequence[Tensor], closest: int | None, over: Callable[[], bool]
) -> tuple[tuple[int, ...], ...]:
    """Return the prefixes that cannot be extended, grown from the first position: all in the span, or the `closest` to it."""
    prefixes = torch.empty(1, 0, dtype=torch.int64, device=network.device)
    ended: list[tuple[int, ...]] = []
    for tokens in candidates:
        if over():
            break
        extended = torch.cat([prefixes.repeat_interleave(len(tokens), 0), tokens.repeat(len(prefixes))[:, None]], dim=1)
        last = [network.read(part, [check.source.layer])[0][:, -1] for part in _parts(extended, check)]
        off = torch.cat([check.distance(each) for each in last])
        within = torch.cat([check.holds(each) for each in last]) if closest is None else torch.ones_like(off).bool()
        grown = within.reshape(len(prefixes), len(tokens)).any(1)
        ended += [tuple(row) for row in prefixes[~grown].tolist() if row]
        order = off.argsort()
        prefixes = extended[order[within[order]][: closest or MOST_PREFIXES].sort().values]
        if not len(prefixes):
            break
    return tuple(ended + [tuple(row) for row in prefixes.tolist() if row])


def _cut_outside(
    network: TokenNetwork, span: Span, sentences: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Return the sentences up to the first token whose input lies outside one more layer's span, without those that others begin with."""
    kept = set()
    for length in {len(each) for each in sentences}:
        tokens = torch.tensor([each for each in sentences if len(each) == length])
        (inputs,) = network.read(tokens, [span.source.layer])
        number = span.holds(inputs).long().cumprod(1).sum(1)
        kept |= {tuple(row[:n]) for row, n in zip(tokens.tolist(), number.tolist(), strict=True) if n}
    begun = {each[:n] for each in kept for n in range(1, len(each))}
    return tuple(sorted(kept - begun))


def _whole_sentences(
    network: TokenNetwork, check: Span, candidates: Sequence[Tensor], closest: int | None, over: Callable[[], bool]
) -> tuple[tuple[int, ...], ...]:
    """Return the sentences of an encoder in the span, or the `closest` to it."""

    def read(tokens: Tensor) -> Tensor:
        return torch.cat([network.read(part, [check.source.layer])[0] for part in _parts(tokens, check)])

    def explained(sentences: Sequence[tuple[int, ...]]) -> bool:
        floor = check.proof_floor
        return closest is None and explains(network, check.source, check.rows, floor, sentences)

    def distance(tokens: Tensor) -> Tensor:
        return check.distance(read(tokens))

    def holds(tokens: Tensor) -> Tensor:
        return check.holds(read(tokens)) if closest is None else distance(tokens) <= MOST_OFF

    return search_sentences(distance, holds, candidates, explained, over)[:closest]
