"""Decepticons: a transformer that imprints tokens. Fowl et al. 2023, Decepticons, arXiv:2201.12675.

The first attention copies a code of the first token of a sentence into reserved coordinates of all its tokens. The dense layers behind
attention are one long imprint of <m, norm(x)>: all rows are `m`, the biases are quantiles over public sentences, all columns
behind are equal. A token alone in its bin comes back as `norm(x)`, x = embedding + position + code: the correlation with all
embeddings and positions names token and place, and its code the sentence. The last block stays honest, so that a
classifier's gradient reaches all tokens. GELU is a ReLU for steep rows.

The authors group codes by k-means. Here the server knows the code of every possible first token, and takes the nearest. Two sentences with
the same first token have one code; their tokens are then dealt to two sentences in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of
from leakscope.attacks.exact.ledger import ROUNDING
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Model
from leakscope.core.tree import TINY, Tree, take
from leakscope.core.types import Knowledge, Observation, Reconstruction, Round, Seeds, Shares, direction
from leakscope.servers.small_transformer import (
    CERTAIN,
    UNREAD,
    SmallTransformer,
    Token,
    deal_sentences,
    find_transformer,
)

CODE = 8  # coordinates of a sentence's code; the next one marks the first token
MARK = 3.0  # times the deviation of an embedding
STEPS = 30.0  # steepness over the median bin, so that GELU switches within a part of one
QUIET = 1e-2  # what the imprint adds to a token, over the deviation of an embedding
ALIKE = 0.99  # correlation of a recovered token with an embedding


@dataclass(frozen=True, slots=True)
class Decepticons:
    """Imprint single tokens in dense layers of a small transformer (`gpt`, pre-norm, learned positions), each with a code of its sentence.

    `Reconstruction.inputs` are token numbers, -1 for tokens that were not read.
    """

    name: str = "decepticons"

    def extend(self, model: Model) -> Model:
        """Return the network itself."""
        return model

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with marked positions, an attention that copies codes, and imprints in all blocks but the last."""
        small = _find(self.name, model)
        changed = _marked(weights, small, key)
        row, biases = self._imprint(model, changed, small, public, key)
        for block, bias in enumerate(biases):
            changed |= {
                small.own(block, "dense1", "weight"): row.expand(len(bias), -1).clone(),
                small.own(block, "dense1", "bias"): bias,
            }
        return changed

    def _imprint(
        self, model: Model, weights: Tree, small: SmallTransformer, public: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the row of the imprint and its biases, blocks x units."""
        layer = small.name(0, "dense1")
        with noting([layer]) as inputs:
            model.apply(weights, model.buffers, public, random.fold(key, "public"))
        seen = inputs[layer]
        if seen is None:
            raise InputError(f"{self.name} does not find {layer} in {model.name!r}")
        seen = seen.flatten(0, -2)
        row = random.normal(random.fold(key, "direction"), (seen.shape[1],)).to(seen)
        row[: CODE + 1] = 0
        row = row / row.norm()
        units, traps = small.units, small.depth - 1
        values = (seen @ row).sort().values
        bins = traps * (units - 1) + 1  # a block begins at the last edge of the one before
        edges = values[(torch.linspace(0, 1, bins + 1)[:-1] * (len(values) - 1)).long()]
        edges[0] -= values[-1] - values[0]
        steep = STEPS * bins / (values[-1] - values[0]).clamp_min(TINY)
        return row * steep, -(edges * steep).unfold(0, units, units - 1)

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the tokens that were alone in their bins, in their sentences and places."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        small, seen = _find(self.name, model), observation.rounds[0]
        length = knowledge.input_shape[0]
        read = [
            deal_sentences(_tokens(small, take(seen, t), observation.shares, length), knowledge.samples, length)
            for t in range(observation.trials)
        ]
        tokens = torch.stack(read)
        unread = (tokens == UNREAD).double().mean((1, 2))
        return exact_result(tokens, labels_of(model, observation, knowledge, seeds), unread, 0.0)


def _find(name: str, model: Model) -> SmallTransformer:
    """Return the transformer in a model; raise where the manipulation does not fit it."""
    small = find_transformer(name, model, 4 * CODE, 2)
    own = (f"{small.prefix}{each}" for each, _ in small.network.named_parameters())
    frozen = next((each for each in own if each not in model.parameters), "")
    if frozen:
        raise InputError(
            f"{name} needs all weights, and {frozen} is frozen in {model.name!r}; for adapters use adapter_imprint"
        )
    return small


def _marked(weights: Tree, small: SmallTransformer, key: Tensor) -> Tree:
    """Return the weights with marked positions, an attention that copies codes, and dense layers whose units all act alike."""
    weights = {name: value.clone() for name, value in weights.items()}
    tokens, places = weights[f"{small.prefix}embedding.weight"], weights[f"{small.prefix}position.weight"]
    deviation = (tokens[:, CODE + 1 :].var() + places[:, CODE + 1 :].var()).sqrt()
    tokens[:, : CODE + 1], places[:, : CODE + 1] = 0, 0
    places[:, CODE] = -MARK * deviation
    places[0, CODE] = MARK * deviation
    traps, units = small.depth - 1, small.units
    for block in range(traps):
        for layer in ("norm1", "norm2", "value", "out", "dense2"):
            for kind in ("weight", "bias"):
                weights[small.own(block, layer, kind)].fill_(layer[:4] == "norm" and kind == "weight")
        second = weights[small.own(block, "dense2", "weight")]
        column = 2 * random.uniform(random.fold(random.fold(key, "column"), block), (len(second),)).to(second) - 1
        second += (column * QUIET * deviation / (STEPS * traps * units**2))[:, None]
    _copy_codes(weights, small, deviation, key)
    return weights


def _copy_codes(weights: Tree, small: SmallTransformer, deviation: Tensor, key: Tensor) -> None:
    """Set the first block's attention: every token sees the marked one alone, and gets a random map of it as its code."""
    attention = {
        layer: {kind: weights[small.own(0, layer, kind)] for kind in ("weight", "bias")}
        for layer in ("query", "key", "value", "out")
    }
    for layer in ("query", "key"):
        for tensor in attention[layer].values():
            tensor.zero_()
    each = small.width // small.first.heads
    score = (CERTAIN / (2 * MARK) * each**0.5) ** 0.5
    attention["query"]["bias"][::each] = score
    attention["key"]["weight"][::each, CODE] = score
    code = random.normal(random.fold(key, "code"), (CODE, small.width - CODE - 1)).to(deviation) / small.width**0.5
    attention["value"]["weight"][:CODE, CODE + 1 :] = code
    attention["out"]["weight"][:CODE, :CODE] = deviation * torch.eye(CODE).to(code)


def _tokens(small: SmallTransformer, seen: Round, shares: Shares, length: int) -> list[Token]:
    """Return the tokens that came back whole from the update of ONE client."""
    update, before = direction(seen, shares), seen.before
    recovered = []
    for block in range(small.depth - 1):
        weight, bias = (update[small.own(block, "dense1", kind)].double() for kind in ("weight", "bias"))
        last = block == small.depth - 2  # the last bin of the other blocks holds all that lies in later blocks
        rows, sums = -weight.diff(dim=0, append=0 * weight[:1]), -bias.diff(append=0 * bias[:1])
        floor = ROUNDING.get(next(iter(update.values())).dtype, 1e-2) * bias.abs().sum()
        filled = (sums.abs() > floor.clamp_min(TINY**2)) & (
            torch.arange(len(sums), device=sums.device) < len(sums) - (not last)
        )
        recovered.append(rows[filled] / sums[filled, None])
    vectors = torch.cat(recovered)
    if not len(vectors):
        return []
    content = vectors[:, CODE + 1 :]
    embedding, position = (before[f"{small.prefix}{name}.weight"].double() for name in ("embedding", "position"))
    matches = [_unit(embedding[:, CODE + 1 :] + each[CODE + 1 :]) @ _unit(content).mT for each in position[:length]]
    best = torch.stack([match.max(0).values for match in matches])
    alike, places = best.max(0)
    tokens = torch.stack([match.argmax(0) for match in matches]).gather(0, places[None])[0]
    known = embedding[tokens] + position[places]
    scale = _centred(content).norm(dim=1) / _centred(known[:, CODE + 1 :]).norm(dim=1)
    shift = content.mean(1) - scale * known[:, CODE + 1 :].mean(1)
    codes = (vectors[:, :CODE] - shift[:, None]) / scale[:, None]
    inside = F.layer_norm(embedding + position[0], embedding.shape[1:])
    value, out = (before[small.own(0, layer, "weight")].double() for layer in ("value", "out"))
    every = (inside @ value.mT @ out.mT)[:, :CODE]
    firsts = torch.cdist(codes, every).argmin(1)
    whole = alike > ALIKE
    found = torch.stack([tokens, places, firsts], 1)[whole].unique(dim=0)
    return [Token(*row) for row in found.tolist()]


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(1, keepdim=True)


def _unit(rows: Tensor) -> Tensor:
    """Return rows without their mean, of length 1."""
    return F.normalize(_centred(rows), dim=1)
