"""What manipulations of leakscope's small transformers share: names of its tensors, and sentences from single tokens with their places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.models import LowRank, TextTransformer
from leakscope.models.transformer_text import TextBlock

UNREAD = -1.0
CERTAIN = 120.0  # difference of attention's scores


class SmallTransformer(NamedTuple):
    """A network whose tensors' names begin with `prefix`."""

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
    def depth(self) -> int:
        """Return the number of blocks."""
        return len(self.network.blocks)

    @property
    def width(self) -> int:
        """Return the numbers of a token."""
        return self.first.norm1.weight.numel()

    @property
    def units(self) -> int:
        """Return the units of a block's first dense layer."""
        return self.network.get_parameter(self.own(0, "dense1", "bias").removeprefix(self.prefix)).numel()

    def layer(self, block: int, name: str) -> nn.Module:
        """Return a layer of a block."""
        return self.network.blocks[block].get_submodule(name)

    def name(self, block: int, layer: str) -> str:
        """Return the name of a block's layer."""
        return f"{self.prefix}blocks.{block}.{layer}"

    def own(self, block: int, layer: str, kind: str) -> str:
        """Return the name of a layer's own weight or bias, frozen if it has an adapter."""
        adapted = isinstance(self.layer(block, layer), LowRank)
        return self.name(block, f"{layer}.dense.{kind}" if adapted else f"{layer}.{kind}")


def find_transformer(name: str, model: Model, width: int, blocks: int) -> SmallTransformer:
    """Return the small transformer in a model; raise where it has norms or positions of another kind, or is too small."""
    module = getattr(model.apply, "module", None)
    layers = module.named_modules() if isinstance(module, nn.Module) else ()
    prefix, network = next(((n, m) for n, m in layers if isinstance(m, TextTransformer)), ("", None))
    if network is None:
        raise InputError(f"{name} changes leakscope's small transformers (gpt, bert); {model.name!r} is none")
    small, lack = SmallTransformer(f"{prefix}." if prefix else "", network), ""
    if not small.first.pre_norm or network.kind != "learned":
        lack = "norms before attention and learned positions"
    elif small.depth < blocks:
        lack = f"at least {('one', 'two', 'three')[blocks - 1]} blocks"
    elif small.width < width:
        lack = f"a width of at least {width}"
    if lack:
        raise InputError(f"{name} needs {lack}; {model.name!r} has not")
    return small


class Token(NamedTuple):
    """A recovered token, its place, and the first token of its sentence."""

    token: int
    place: int
    first: int

    def __repr__(self) -> str:
        return f"Token(place={self.place})"


def deal_sentences(tokens: Iterable[Token], number: int, length: int) -> Tensor:
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
