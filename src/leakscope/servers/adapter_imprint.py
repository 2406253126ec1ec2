"""Tokens from low-rank adapters alone, behind frozen weights that the server sends: an imprint seen through A.

An adapter adds `s B A x` to a frozen layer. It starts with B = 0, so the first update holds nothing but

    dL/dB = s sum_t (dL/dy_t) (A x_t)^T

the gradient of the frozen layer's own weights, seen through A. The server makes that layer an imprint (`decepticons`) and A a selector of
coordinates, the first of which is 1 for every token. Neighbouring rows of dL/dB then differ by the sum of `g_t A x_t` over the tokens t of
one bin, and their first column by that of `g_t`: a token alone in its bin comes back as A x. The rows of B are bins, so the rank limits not
their number, only what is seen of a token. Three numbers beside the 1 are enough: one of the token, one of its place, one of its sentence.

The server also chooses embeddings and positions. A token has 8 numbers, a place an angle, and the first attention copies the 8 numbers
of a sentence's first token to all its tokens. All have mean 0 and equal length, so that norms divide them by a constant.

Adapters on `dense1`: the frozen layer is the imprint, in all blocks but the last.

Adapters on `value`: every token attends to itself. Frozen values are 0, and each is added to a coordinate of its own, a channel, which is 0
for all tokens. Unit j of the frozen `dense1` behind is `steep (<m, x> - edge_j) + PULL channel_j`, so that the gradient of value j is 0 for
tokens below edge j. The rest of the network gives all channels one gradient, which the difference of rows takes away; what later blocks
send back through a channel is in their own update too. The first block copies the numbers, the last brings the gradient to all
tokens, so there must be three. MineGrad (AISTATS 2026) reads adapters on queries, by a token's attention to another one; values need no
such pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of
from leakscope.attacks.exact.ledger import ROUNDING
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import TINY, Tree, take
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds, direction
from leakscope.models import LowRank
from leakscope.servers.small_transformer import (
    CERTAIN,
    UNREAD,
    SmallTransformer,
    Token,
    deal_sentences,
    find_transformer,
)

NUMBERS = 8  # of a token
MARKS = slice(0, 2)  # opposite for the first place and the others; behind the first norm the constant 1
TOKEN, PLACE, FIRST = slice(2, 10), slice(10, 14), slice(14, 22)
CHANNELS = 22  # the first of them
FEWEST = 8  # channels
MARK = 2.0
STEPS = 150.0  # steepness over the median bin, so that GELU switches within a part of one
QUIET = 3e-2  # what the imprint adds to a token at most, over its numbers and the number of units
PULL = 3e7  # of a channel at its unit: its gradient is then far above what rounding leaves of the others
APART = 2.0  # neighbouring places in the imprint, over the deviation of tokens: the places of a sentence fill all bins evenly
SENTENCES = 4096  # drawn to find the edges of bins
NEAR = 0.02  # of a number that was read to that of a token, where equal ones differ by rounding


class Adapted(NamedTuple):
    """Where a network's adapters imprint, and the numbers of tokens (V x 8) and places (L x 4) as the layers see them."""

    small: SmallTransformer
    layer: str
    tokens: Tensor
    places: Tensor

    @property
    def blocks(self) -> range:
        """Return the blocks that imprint."""
        return range(self.layer == "value", self.small.depth - 1)

    @property
    def units(self) -> int:
        """Return the units of a block that imprint."""
        dense = self.small.units
        return min(dense, self.small.width - CHANNELS) if self.layer == "value" else dense

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Return how many numbers of token, place and first token the adapter sees."""
        adapter = self.small.layer(self.blocks[0], self.layer)
        rank = adapter.inner.out_features if isinstance(adapter, LowRank) else 1
        places = min((rank - 1) // 3, 2)  # of sine and cosine
        rest = rank - 1 - places
        return min(rest - rest // 2, NUMBERS), places, min(rest // 2, NUMBERS)

    @property
    def selected(self) -> list[int]:
        """Return the coordinates that A selects."""
        token, place, first = self.numbers
        parts = zip((TOKEN, PLACE, FIRST), (token, place, first), strict=True)
        return [MARKS.start, *(part.start + number for part, count in parts for number in range(count))]


@dataclass(frozen=True, slots=True)
class AdapterImprint:
    """Imprint single tokens in low-rank adapters on `dense1` or `value` of a small transformer, whose frozen weights the server chooses.

    `Reconstruction.inputs` are token numbers, -1 for tokens that were not read.
    """

    name: str = "adapter_imprint"

    def extend(self, model: Model) -> Model:
        """Return the network with frozen weights of the server's own."""
        sent = _sent(_find(self.name, model), model.buffers | model.parameters)
        return replace(model, buffers={name: sent[name] for name in model.buffers})

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the adapters, B = 0, and whatever else is trained; the frozen weights are the same for all clients, so is this."""
        del public, key
        sent = _sent(_find(self.name, model), model.buffers | weights)
        return {name: sent[name] for name in weights}

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the tokens that were alone in their bins, in their sentences and places."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        adapted, seen = _find(self.name, model), observation.rounds[0]
        updates = (direction(take(seen, t), observation.shares) for t in range(observation.trials))
        read = [
            deal_sentences(set(_read(adapted, update)), knowledge.samples, len(adapted.places)) for update in updates
        ]
        tokens = torch.stack(read)
        unread = (tokens == UNREAD).double().mean((1, 2))
        return exact_result(tokens, labels_of(model, observation, knowledge, seeds), unread, 0.0)


def _find(name: str, model: Model) -> Adapted:
    """Return where the manipulation imprints; raise where it does not fit the network."""
    small = find_transformer(name, model, CHANNELS + FEWEST, 2)
    layers = {
        layer: range(layer == "value", small.depth - 1)
        for layer in ("dense1", "value")
        if all(small.name(b, f"{layer}.outer.weight") in model.parameters for b in range(small.depth - 1))
    }
    layer = next((layer for layer, blocks in layers.items() if blocks), None)
    if layer is None:
        lack = "three blocks for adapters on values" if layers else "low-rank adapters on dense1 or value"
        raise InputError(f"{name} needs {lack}; {model.name!r} has not")
    if layer == "value" and small.width // small.first.heads < PLACE.stop - PLACE.start:
        raise InputError(f"{name} needs heads of at least {PLACE.stop - PLACE.start} numbers; {model.name!r} has not")
    vocabulary = len((model.buffers | model.parameters)[f"{small.prefix}embedding.weight"])
    key = random.key([0])[0]
    tokens = F.layer_norm(random.normal(random.fold(key, "tokens"), (vocabulary, NUMBERS)), (NUMBERS,))
    length = model.input_shape[0]
    angles = math.pi * (0.25 + 0.5 * torch.arange(length) / max(length - 1, 1))
    places = 2**0.5 * torch.stack([angles.cos(), angles.sin(), -angles.cos(), -angles.sin()], 1)
    adapted = Adapted(small, layer, tokens, places)
    if not all(adapted.numbers):
        raise InputError(f"{name} needs adapters of rank 4 or more; {model.name!r} has not")
    return adapted


def _deviation(adapted: Adapted, codes: int) -> float:
    """Return the deviation of a token's numbers, by which norms divide, with so many codes of the token or its sentence."""
    size = 2 * MARK**2 + float(adapted.places[0].square().sum()) + codes * NUMBERS
    return math.sqrt(size / adapted.small.width + adapted.small.first.norm1.eps)


def _sent(adapted: Adapted, tensors: Tree) -> Tree:
    """Return the tensors that a client gets."""
    small = adapted.small
    tensors = {name: value.clone() for name, value in tensors.items()}
    for name, value in tensors.items():
        if name.endswith(".outer.weight"):
            value.zero_()
    for block in range(small.depth - 1):
        for layer in ("query", "key", "value", "out", "dense1", "dense2", "norm1", "norm2"):
            for kind in ("weight", "bias"):
                tensors[small.own(block, layer, kind)].fill_(layer[:4] == "norm" and kind == "weight")
    tokens, places = tensors[f"{small.prefix}embedding.weight"], tensors[f"{small.prefix}position.weight"]
    tokens.zero_()[:, TOKEN] = adapted.tokens.to(tokens)
    places.zero_()[: len(adapted.places), PLACE] = adapted.places.to(places)
    places[:, MARKS] = MARK * places.new_tensor([-1.0, 1.0])
    places[0, MARKS] *= -1
    _copy_first_tokens(tensors, adapted)
    if adapted.layer == "value":
        _keep_channels(tensors, adapted)
    _set_imprint(tensors, adapted)
    return tensors


def _copy_first_tokens(tensors: Tree, adapted: Adapted) -> None:
    """Set the first attention: every token sees the marked one alone, and gets its numbers."""
    small, deviation = adapted.small, _deviation(adapted, 1)
    each = small.width // small.first.heads
    score = (CERTAIN * each**0.5 * deviation / (2 * MARK)) ** 0.5
    tensors[small.own(0, "query", "bias")][::each] = score
    tensors[small.own(0, "key", "weight")][::each, MARKS.start] = score
    copied = torch.eye(NUMBERS)
    tensors[small.own(0, "value", "weight")][:NUMBERS, TOKEN] = copied * deviation
    tensors[small.own(0, "out", "weight")][FIRST, :NUMBERS] = copied


def _keep_channels(tensors: Tree, adapted: Adapted) -> None:
    """Let tokens attend to themselves, bring every value to its channel, and hide the channels from the last block."""
    small, places = adapted.small, adapted.places
    each = small.width // small.first.heads
    apart = (places[0] @ places[0] - (places @ places.mT).fill_diagonal_(-torch.inf).max()).clamp_min(TINY)
    score = (CERTAIN * each**0.5 / float(apart)) ** 0.5 * _deviation(adapted, 2)
    for block in adapted.blocks:
        for layer in ("query", "key"):
            weight = tensors[small.own(block, layer, "weight")].unflatten(0, (small.first.heads, each))
            weight[:, : places.shape[1], PLACE] = (score * torch.eye(places.shape[1])).to(weight)
        value = torch.arange(adapted.units)
        tensors[small.own(block, "out", "weight")][CHANNELS + value, value] = 1
    last = small.depth - 1
    names = [
        small.own(last, layer, kind) for layer in ("norm1", "norm2", "out", "dense2") for kind in ("weight", "bias")
    ]
    for name in (*names, f"{small.prefix}norm.weight", f"{small.prefix}norm.bias"):
        tensors[name][CHANNELS:] = 0


def _set_imprint(tensors: Tree, adapted: Adapted) -> None:
    """Set A, the frozen imprint, and the norm before the adapter, which gives it a 1."""
    small, units, blocks = adapted.small, adapted.units, adapted.blocks
    row, edges = _edges(adapted)
    span = float(edges[-1] - edges[0])
    steep = STEPS * len(edges) / span
    bins = edges.unfold(0, units, units - 1)  # a block begins at the last edge of the one before
    for block, edge in zip(blocks, bins, strict=True):
        norm = "norm1" if adapted.layer == "value" else "norm2"
        for kind in ("weight", "bias"):
            tensors[small.own(block, norm, kind)][MARKS.start] = kind == "bias"
        inner = tensors[small.name(block, f"{adapted.layer}.inner.weight")].zero_()
        inner[: len(adapted.selected)] = torch.eye(small.width)[adapted.selected].to(inner)
        first, bias = (tensors[small.own(block, "dense1", kind)] for kind in ("weight", "bias"))
        first[:units], bias[:units] = (steep * row).to(first), (-steep * edge).to(bias)
        unit = torch.arange(units)
        if adapted.layer == "value":
            first[unit, CHANNELS + unit] = PULL
        second = tensors[small.own(block, "dense2", "weight")]
        column = random.normal(random.fold(random.fold(random.key([0])[0], "column"), block), (CHANNELS,))
        second[:CHANNELS, :units] = (column * QUIET / (units**2 * steep * span)).to(second)[:, None]


def _edges(adapted: Adapted) -> tuple[Tensor, Tensor]:
    """Return the row of the imprint and the edges of the bins of all blocks, at quantiles over sentences of drawn tokens."""
    key, length = random.key([0])[0], len(adapted.places)
    sides = random.normal(random.fold(key, "direction"), (2, NUMBERS))
    sides = sides - sides.mean(1, keepdim=True)
    sides /= sides.norm()
    row = torch.zeros(adapted.small.width)
    row[TOKEN], row[FIRST] = sides
    gap = adapted.places[:, 0].diff().abs().min() if length > 1 else torch.ones(())
    row[PLACE.start] = APART / gap
    values = adapted.tokens @ sides.mT
    drawn = random.uniform(random.fold(key, "sentences"), (SENTENCES, length)).mul(len(values)).long()
    seen = values[drawn, 0] + values[drawn[:, :1], 1] + row[PLACE.start] * adapted.places[:, 0]
    seen = seen.flatten().sort().values / _deviation(adapted, 2)
    number = len(adapted.blocks) * (adapted.units - 1) + 1
    return row, seen[(torch.linspace(0, 1, number) * (len(seen) - 1)).long()]


def _read(adapted: Adapted, update: Tree) -> Iterator[Token]:
    """Yield the tokens that came back whole from the update of ONE client."""
    numbers, deviation = adapted.numbers, _deviation(adapted, 2)
    tables = [table / deviation for table in (adapted.tokens, adapted.places, adapted.tokens)]
    names = [adapted.small.name(block, f"{adapted.layer}.outer.weight") for block in adapted.blocks]
    seen = torch.stack([update[name][: adapted.units, : 1 + sum(numbers)].double() for name in names])
    floors = ROUNDING.get(update[names[0]].dtype, 1e-2) * seen[:, :, 0].abs().amax(1)
    if adapted.layer == "value":  # a channel also carries what later blocks send back through it
        seen[:-1] -= seen[1:].clone()
    for rows, floor in zip(-seen.diff(dim=1), floors, strict=True):
        filled = rows[rows[:, 0].abs() > floor.clamp_min(TINY**2)]
        parts = (filled[:, 1:] / filled[:, :1]).split(numbers, dim=1)
        near = [
            torch.cdist(part, table[:, : part.shape[1]].to(part)).min(1)
            for part, table in zip(parts, tables, strict=True)
        ]
        whole = torch.stack([each.values for each in near]).amax(0) < NEAR
        for token in torch.stack([each.indices for each in near], 1)[whole].tolist():
            yield Token(*token)
