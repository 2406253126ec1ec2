"""Decepticons: a transformer that imprints tokens. Fowl et al. 2023, Decepticons, arXiv:2201.12675.

The first attention copies a code of the first token of a sentence into reserved coordinates of all its tokens. The dense layers behind
attention are one long imprint of <m, norm(x)>: all rows are `m`, the biases are quantiles over public sentences, all columns
behind are equal. A token alone in its bin comes back as `norm(x)`, x = embedding + position + code: the correlation with all
embeddings and positions names token and place, and its code the sentence. The last block stays honest, so that a
classifier's gradient reaches all tokens. GELU is a ReLU for steep rows.

The authors group codes by k-means. Here the server knows the code of every possible first token, and takes the nearest. Two sentences with
the same first token have one code; their tokens are then dealt to two sentences in any order.

Clients that train low-rank adapters share nothing else, but get the frozen weights from the server, too (MineGrad and PEFTLeak, CVPR 2025,
rest on that). With adapters on `dense1` the frozen layer is zero, B picks one unit for each row of A, and the rows of A are the imprint:
norms put a 1 beside the token, on which a row has its bias. An adapter has few rows, so bins go by place first: the places of
one sentence fill all bins evenly.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from leakscope.models import LowRank, TextTransformer
from leakscope.models.transformer_text import TextBlock

CODE = 8  # coordinates of a sentence's code; the next one marks the first token
MARK = 3.0  # times the deviation of an embedding
CERTAIN = 120.0  # difference of attention's scores
STEPS = 30.0  # steepness over the median bin, so that GELU switches within a part of one
QUIET = 1e-2  # what the imprint adds to a token, over the deviation of an embedding
ALIKE = 0.99  # correlation of a recovered token with an embedding
RAMP = 2.0  # the largest value of the coordinate that counts the places, over the deviation of an embedding
PLACES = 10.0  # its weight in the row of an imprint, whose other weights have length 1
UNREAD = -1.0


class Gpt(NamedTuple):
    """Names of a decoder's tensors begin with `prefix`; `traps` blocks imprint."""

    prefix: str
    network: TextTransformer

    @property
    def first(self) -> TextBlock:
        """Return the first block."""
        block = self.network.blocks[0]
        if not isinstance(block, TextBlock):
            raise TypeError("a transformer of other blocks")
        return block

    @property
    def traps(self) -> int:
        """Return the number of blocks that imprint: all but the last."""
        return len(self.network.blocks) - 1

    @property
    def rank(self) -> int | None:
        """Return the rows of the adapters on `dense1`; None for a network whose own weights are trained."""
        layer: nn.Module = self.first.dense1
        return layer.inner.out_features if isinstance(layer, LowRank) else None

    @property
    def units(self) -> int:
        """Return the units of a block that imprint."""
        return self.rank or self.first.dense1.out_features

    @property
    def beside(self) -> int:
        """Return the coordinates that are no content: the code, the mark of the first token and, for adapters, the place."""
        return CODE + 1 + (self.rank is not None)

    def name(self, block: int, layer: str) -> str:
        """Return the name of a block's layer."""
        return f"{self.prefix}blocks.{block}.{layer}"

    def tensor(self, block: int, layer: str, kind: str) -> str:
        """Return the name of a layer's own weight or bias, frozen if it has an adapter."""
        adapted = isinstance(self.network.blocks[block].get_submodule(layer), LowRank)
        return self.name(block, f"{layer}.dense.{kind}" if adapted else f"{layer}.{kind}")


@dataclass(frozen=True, slots=True)
class Decepticons:
    """Imprint single tokens in dense layers of a small transformer (`gpt`, pre-norm, learned positions) or in their low-rank adapters.

    Each token comes with a code of its sentence. With adapters the server also chooses the frozen weights.

    `Reconstruction.inputs` are token numbers, -1 for tokens that were not read.
    """

    name: str = "decepticons"

    def extend(self, model: Model) -> Model:
        """Return the network itself, or with frozen weights of the server's own."""
        gpt = _find(self.name, model)
        if gpt.rank is None:
            return model
        sent = _beside_adapters(gpt, model.buffers | model.parameters)
        return replace(model, buffers={name: sent[name] for name in model.buffers})

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with marked positions, an attention that copies codes, and imprints in all blocks but the last.

        Of adapters, those on `dense1` imprint and the others are 0.
        """
        gpt = _find(self.name, model)
        if gpt.rank is None:
            changed = _marked(weights, gpt, key)
            rows, biases = self._imprint(model, changed, gpt, public, key)
            for block, bias in enumerate(biases):
                weight, own = (gpt.tensor(block, "dense1", kind) for kind in ("weight", "bias"))
                changed |= {weight: rows.expand(len(bias), -1).clone(), own: bias}
            return changed
        sent = _beside_adapters(gpt, model.buffers | weights)
        changed = {name: 0 * sent[name] if name.endswith(".outer.weight") else sent[name] for name in weights}
        rows, biases = self._imprint(self.extend(model), changed, gpt, public, key)
        for block, bias in enumerate(biases):
            inner, outer = (gpt.name(block, f"dense1.{layer}.weight") for layer in ("inner", "outer"))
            imprint = rows.expand(len(bias), -1).clone()
            imprint[:, CODE] = bias
            layer: nn.Module = gpt.first.dense1
            scale = layer.scale if isinstance(layer, LowRank) else 1
            units = torch.eye(len(weights[outer]), len(bias)).to(imprint) / scale
            changed |= {inner: imprint, outer: units}
        return changed

    def _imprint(self, model: Model, weights: Tree, gpt: Gpt, public: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of the imprint and its biases, blocks x units."""
        layer = gpt.name(0, "dense1")
        with noting([layer]) as inputs:
            model.apply(weights, model.buffers, public, random.fold(key, "public"))
        seen = inputs[layer]
        if seen is None:
            raise InputError(f"{self.name} does not find {layer} in {model.name!r}")
        seen = seen.flatten(0, -2)
        row = random.normal(random.fold(key, "direction"), (seen.shape[1],)).to(seen)
        row[: gpt.beside] = 0
        row = row / row.norm()
        if gpt.rank is not None:
            row[CODE + 1] = PLACES
        values = (seen @ row).sort().values
        bins = gpt.traps * (gpt.units - 1) + 1  # a block begins at the last edge of the one before
        edges = values[(torch.linspace(0, 1, bins + 1)[:-1] * (len(values) - 1)).long()]
        edges[0] -= values[-1] - values[0]
        steep = STEPS * bins / (values[-1] - values[0]).clamp_min(TINY)
        return row * steep, -(edges * steep).unfold(0, gpt.units, max(gpt.units - 1, 1))

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the tokens that were alone in their bins, in their sentences and places."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        gpt, seen = _find(self.name, model), observation.rounds[0]
        length = knowledge.input_shape[0]
        read = [
            _sentences(
                _tokens(gpt, take(seen, t), observation.shares, model.buffers, length), knowledge.samples, length
            )
            for t in range(observation.trials)
        ]
        tokens = torch.stack(read)
        unread = (tokens == UNREAD).double().mean((1, 2))
        return exact_result(tokens, labels_of(model, observation, knowledge, seeds), unread, 0.0)


def _find(name: str, model: Model) -> Gpt:
    """Return the decoder in a model; raise where the manipulation does not fit it."""
    module = getattr(model.apply, "module", None)
    layers = module.named_modules() if isinstance(module, nn.Module) else ()
    prefix, network = next(((n, m) for n, m in layers if isinstance(m, TextTransformer)), ("", None))
    if network is None:
        raise InputError(f"{name} changes leakscope's small transformers (gpt, bert); {model.name!r} is none")
    dotted, lack = f"{prefix}." if prefix else "", ""
    gpt = Gpt(dotted, network)
    frozen = [each for each, _ in network.named_parameters() if f"{dotted}{each}" not in model.parameters]
    adapters = [gpt.name(block, "dense1.inner.weight") for block in range(gpt.traps)]
    if not gpt.first.pre_norm or network.kind != "learned":
        lack = "norms before attention and learned positions"
    elif len(network.blocks) < 2:
        lack = "at least two blocks"
    elif gpt.first.norm1.weight.numel() < 4 * CODE:
        lack = f"a width of at least {4 * CODE}"
    elif frozen and not model.parameters.keys() >= {*adapters}:
        lack = f"all weights, or adapters on dense1, and {frozen[0]} is frozen"
    if lack:
        raise InputError(f"{name} needs {lack}; {model.name!r} has not")
    return gpt


def _marked(tensors: Tree, gpt: Gpt, key: Tensor) -> Tree:
    """Return the tensors with marked positions, an attention that copies codes, and dense layers whose units all act alike."""
    tensors = {name: value.clone() for name, value in tensors.items()}
    tokens, places = tensors[f"{gpt.prefix}embedding.weight"], tensors[f"{gpt.prefix}position.weight"]
    deviation = (tokens[:, gpt.beside :].var() + places[:, gpt.beside :].var()).sqrt()
    tokens[:, : gpt.beside], places[:, : gpt.beside] = 0, 0
    places[:, CODE] = -MARK * deviation
    places[0, CODE] = MARK * deviation
    if gpt.rank is not None:
        for each in (tokens, places):
            each[:, gpt.beside :] = (
                deviation / 2**0.5 * F.layer_norm(each[:, gpt.beside :], each[0, gpt.beside :].shape)
            )
        places[:, CODE + 1] = RAMP * deviation * torch.linspace(-1, 1, len(places))
    for block in range(gpt.traps):
        for layer in ("norm1", "norm2", "value", "out", "dense2"):
            for kind in ("weight", "bias"):
                tensors[gpt.tensor(block, layer, kind)].fill_(layer[:4] == "norm" and kind == "weight")
        second = tensors[gpt.tensor(block, "dense2", "weight")]
        column = 2 * random.uniform(random.fold(random.fold(key, "column"), block), (len(second),)).to(second) - 1
        second += (column * QUIET * deviation / (STEPS * gpt.traps * gpt.units**2))[:, None]
    _copy_codes(tensors, gpt, deviation, key)
    return tensors


def _beside_adapters(gpt: Gpt, tensors: Tree) -> Tree:
    """Return the tensors that clients with adapters get: no dense layer but the adapters, and a 1 beside each of their inputs."""
    sent = _marked(
        tensors, gpt, random.key([0])[0]
    )  # frozen ones are the same for all clients, so is what goes with them
    for block in range(gpt.traps):
        for kind in ("weight", "bias"):
            sent[gpt.tensor(block, "dense1", kind)].zero_()
            sent[gpt.tensor(block, "norm2", kind)][CODE] = kind == "bias"
    return sent


def _copy_codes(tensors: Tree, gpt: Gpt, deviation: Tensor, key: Tensor) -> None:
    """Set the first block's attention: every token sees the marked one alone, and gets a random map of it as its code."""
    attention = {
        layer: {kind: tensors[gpt.tensor(0, layer, kind)] for kind in ("weight", "bias")}
        for layer in ("query", "key", "value", "out")
    }
    for layer in ("query", "key"):
        for tensor in attention[layer].values():
            tensor.zero_()
    width = len(attention["query"]["bias"])
    each = width // gpt.first.heads
    score = (CERTAIN / (2 * MARK) * each**0.5) ** 0.5
    attention["query"]["bias"][::each] = score
    attention["key"]["weight"][::each, CODE] = score
    code = random.normal(random.fold(key, "code"), (CODE, width - CODE - 1)).to(deviation) / width**0.5
    attention["value"]["weight"][:CODE, CODE + 1 :] = code
    attention["out"]["weight"][:CODE, :CODE] = deviation * torch.eye(CODE).to(code)


class Token(NamedTuple):
    """A recovered token, its place, and the first token of its sentence."""

    token: int
    place: int
    first: int

    def __repr__(self) -> str:
        return f"Token(place={self.place})"


def _tokens(gpt: Gpt, seen: Round, shares: Shares, buffers: Tree, length: int) -> list[Token]:
    """Return the tokens that came back whole from the update of ONE client."""
    update, sent = direction(seen, shares), buffers | seen.before
    recovered = []
    for block in range(gpt.traps):
        if gpt.rank is None:
            weight, bias = (update[gpt.name(block, f"dense1.{kind}")].double() for kind in ("weight", "bias"))
        else:
            weight = update[gpt.name(block, "dense1.inner.weight")].double()
            bias = weight[:, CODE]
        last = block == gpt.traps - 1  # the last bin of the other blocks holds all that lies in later blocks
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
    embedding, position = (sent[f"{gpt.prefix}{name}.weight"].double() for name in ("embedding", "position"))
    matches = [_unit(embedding[:, CODE + 1 :] + each[CODE + 1 :]) @ _unit(content).mT for each in position[:length]]
    best = torch.stack([match.max(0).values for match in matches])
    alike, places = best.max(0)
    tokens = torch.stack([match.argmax(0) for match in matches]).gather(0, places[None])[0]
    known = embedding[tokens] + position[places]
    scale = _centred(content).norm(dim=1) / _centred(known[:, CODE + 1 :]).norm(dim=1)
    shift = content.mean(1) - scale * known[:, CODE + 1 :].mean(1)
    codes = (vectors[:, :CODE] - shift[:, None]) / scale[:, None]
    inside = F.layer_norm(embedding + position[0], embedding.shape[1:])
    value, out = (sent[gpt.tensor(0, layer, "weight")].double() for layer in ("value", "out"))
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


def _sentences(tokens: list[Token], number: int, length: int) -> Tensor:
    """Return N x L token numbers, the fullest sentences first; a first token stands for its sentence's code."""
    groups: defaultdict[int, list[dict[int, int]]] = defaultdict(lambda: [{}])
    for token, place, first in tokens:
        free = next((each for each in groups[first] if place not in each), None)
        if free is None:
            groups[first].append(free := {})
        free[place] = token
    read = [{0: first, **sentence} for first, group in groups.items() for sentence in group]
    read.sort(key=len, reverse=True)
    result = torch.full((number, length), UNREAD)
    for row, sentence in zip(result, read, strict=False):
        for place, token in sentence.items():
            row[place] = token
    return result
