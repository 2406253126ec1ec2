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

from collections import defaultdict
from dataclasses import dataclass
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
from leakscope.models import TextTransformer
from leakscope.models.transformer_text import TextBlock

CODE = 8  # coordinates of a sentence's code; the next one marks the first token
MARK = 3.0  # times the deviation of an embedding
CERTAIN = 120.0  # difference of attention's scores
STEPS = 30.0  # steepness over the median bin, so that GELU switches within a part of one
QUIET = 1e-2  # what the imprint adds to a token, over the deviation of an embedding
ALIKE = 0.99  # correlation of a recovered token with an embedding
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

    def name(self, block: int, layer: str) -> str:
        """Return the name of a block's layer."""
        return f"{self.prefix}blocks.{block}.{layer}"


@dataclass(frozen=True, slots=True)
class Decepticons:
    """Imprint single tokens in the dense layers of a small transformer (`gpt`, pre-norm, learned positions), with a code of their sentence.

    `Reconstruction.inputs` are token numbers, -1 for tokens that were not read.
    """

    name: str = "decepticons"

    def extend(self, model: Model) -> Model:
        """Return the network itself."""
        return model

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with marked positions, an attention that copies codes, and imprints in all blocks but the last."""
        gpt = _find(self.name, model)
        changed, like = dict(weights), weights[f"{gpt.prefix}embedding.weight"]
        tokens, places = like.clone(), weights[f"{gpt.prefix}position.weight"].clone()
        deviation = (tokens[:, CODE + 1 :].var() + places[:, CODE + 1 :].var()).sqrt()
        tokens[:, : CODE + 1], places[:, : CODE + 1] = 0, 0
        places[:, CODE] = -MARK * deviation
        places[0, CODE] = MARK * deviation
        changed |= {f"{gpt.prefix}embedding.weight": tokens, f"{gpt.prefix}position.weight": places}
        for block in range(gpt.traps):
            changed |= _set(changed, gpt, block, {"norm1.weight": 1, "norm2.weight": 1})
            zero = (
                "norm1.bias",
                "norm2.bias",
                "value.weight",
                "value.bias",
                "out.weight",
                "out.bias",
                "dense2.weight",
                "dense2.bias",
            )
            changed |= _set(changed, gpt, block, dict.fromkeys(zero, 0))
        changed |= _codes(changed, gpt, deviation, key)
        rows, biases = self._imprint(model, changed, gpt, public, key)
        for block in range(gpt.traps):
            second = changed[gpt.name(block, "dense2.weight")]
            column = 2 * random.uniform(random.fold(random.fold(key, "column"), block), (len(second),)).to(like) - 1
            column = column * QUIET * deviation / (second.shape[1] * rows.norm())
            changed |= {
                gpt.name(block, "dense1.weight"): rows.expand(second.shape[1], -1).clone(),
                gpt.name(block, "dense1.bias"): biases[block],
                gpt.name(block, "dense2.weight"): column[:, None].expand(second.shape).clone(),
            }
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
        row[: CODE + 1] = 0
        row = row / row.norm()
        units = len(weights[gpt.name(0, "dense1.bias")])
        values = (seen @ row).sort().values
        edges = values[(torch.linspace(0, 1, gpt.traps * units + 1)[:-1] * (len(values) - 1)).long()]
        edges[0] -= values[-1] - values[0]
        steep = STEPS * gpt.traps * units / (values[-1] - values[0]).clamp_min(TINY)
        return row * steep, -(edges * steep).unflatten(0, (gpt.traps, units))

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the tokens that were alone in their bins, in their sentences and places."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        gpt, seen = _find(self.name, model), observation.rounds[0]
        length = knowledge.input_shape[0]
        read = [
            _sentences(_tokens(gpt, take(seen, t), observation.shares, length), knowledge.samples, length)
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
    first = Gpt(dotted, network).first
    if not first.pre_norm or network.kind != "learned":
        lack = "norms before attention and learned positions"
    elif len(network.blocks) < 2:
        lack = "at least two blocks"
    elif first.query.out_features < 4 * CODE:
        lack = f"a width of at least {4 * CODE}"
    missing = [each for each, _ in network.named_parameters() if f"{dotted}{each}" not in model.parameters]
    if lack or missing:
        raise InputError(f"{name} needs {lack or f'all weights, and {missing[0]} is frozen'}; {model.name!r} has not")
    return Gpt(dotted, network)


def _set(weights: Tree, gpt: Gpt, block: int, values: dict[str, int]) -> Tree:
    names = {gpt.name(block, layer): value for layer, value in values.items()}
    return {name: torch.full_like(weights[name], value) for name, value in names.items()}


def _codes(weights: Tree, gpt: Gpt, deviation: Tensor, key: Tensor) -> Tree:
    """Return the first block's attention: every token sees the marked one alone, and gets a random map of it as its code."""
    names = {layer: gpt.name(0, layer) for layer in ("query.weight", "query.bias", "key.weight", "key.bias")}
    attention = {name: torch.zeros_like(weights[name]) for name in names.values()}
    width = len(weights[names["query.bias"]])
    each = width // gpt.first.heads
    score = (CERTAIN / (2 * MARK) * each**0.5) ** 0.5
    attention[names["query.bias"]][::each] = score
    attention[names["key.weight"]][::each, CODE] = score
    value, out = gpt.name(0, "value.weight"), gpt.name(0, "out.weight")
    code = random.normal(random.fold(key, "code"), (CODE, width - CODE - 1)).to(weights[value]) / width**0.5
    attention[value], attention[out] = torch.zeros_like(weights[value]), torch.zeros_like(weights[out])
    attention[value][:CODE, CODE + 1 :] = code
    attention[out][:CODE, :CODE] = deviation * torch.eye(CODE).to(code)
    return attention


class Token(NamedTuple):
    """A recovered token, its place, and the first token of its sentence."""

    token: int
    place: int
    first: int

    def __repr__(self) -> str:
        return f"Token(place={self.place})"


def _tokens(gpt: Gpt, seen: Round, shares: Shares, length: int) -> list[Token]:
    """Return the tokens that came back whole from the update of ONE client."""
    update, before = direction(seen, shares), seen.before
    recovered = []
    for block in range(gpt.traps):
        weight, bias = (update[gpt.name(block, f"dense1.{kind}")].double() for kind in ("weight", "bias"))
        last = block == gpt.traps - 1  # the last bin of the other blocks holds all that lies in later blocks
        rows, sums = -weight.diff(dim=0, append=0 * weight[:1]), -bias.diff(append=0 * bias[:1])
        floor = ROUNDING.get(update[gpt.name(block, "dense1.bias")].dtype, 1e-2) * bias.abs().sum()
        filled = (sums.abs() > floor.clamp_min(TINY**2)) & (
            torch.arange(len(sums), device=sums.device) < len(sums) - (not last)
        )
        recovered.append(rows[filled] / sums[filled, None])
    vectors = torch.cat(recovered)
    if not len(vectors):
        return []
    content = vectors[:, CODE + 1 :]
    embedding, position = (before[f"{gpt.prefix}{name}.weight"].double() for name in ("embedding", "position"))
    matches = [_unit(embedding[:, CODE + 1 :] + each[CODE + 1 :]) @ _unit(content).mT for each in position[:length]]
    best = torch.stack([match.max(0).values for match in matches])
    alike, places = best.max(0)
    tokens = torch.stack([match.argmax(0) for match in matches]).gather(0, places[None])[0]
    known = embedding[tokens] + position[places]
    scale = _centred(content).norm(dim=1) / _centred(known[:, CODE + 1 :]).norm(dim=1)
    shift = content.mean(1) - scale * known[:, CODE + 1 :].mean(1)
    codes = (vectors[:, :CODE] - shift[:, None]) / scale[:, None]
    inside = F.layer_norm(embedding + position[0], embedding.shape[1:])
    value, out = (before[gpt.name(0, f"{layer}.weight")].double() for layer in ("value", "out"))
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
