"""Small transformers over token numbers: a decoder as GPT-2 (causal) and an encoder as BERT.

Radford et al. 2019 (GPT-2): token and position embeddings, pre-norm blocks of causal attention and a two-layer network with GELU, a
last layer norm. Devlin et al. 2019, arXiv:1810.04805 (BERT): the same without causality. First weights as GPT-2's: N(0, 0.02^2),
biases 0. Queries, keys and values are layers of their own, so that low-rank adapters can sit on some of them (`low_rank`).

Positions are learned, sinusoidal (Vaswani et al. 2017, arXiv:1706.03762) or rotary (Su et al. 2021, arXiv:2104.09864), which turn queries
and keys and leave the embedding alone.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.models.settings import positive, probability
from leakscope.models.vit import attend

DEVIATION = 0.02  # of the first weights
POSITIONS = ("learned", "sinusoidal", "rotary")


def angles(places: Tensor, number: int) -> Tensor:
    """Return `p 10000^(-i / number)` for places p and i = 0 .. number - 1."""
    steps = torch.arange(number, device=places.device, dtype=torch.float64)
    return places.double()[:, None] * torch.exp(-math.log(10_000) * steps / number)


def rotate(x: Tensor, heads: int) -> Tensor:
    """Return tokens (N x T x width) with the pairs (i, i + h / 2) of every head of h values turned by the angles of their places."""
    turn = angles(torch.arange(x.shape[1], device=x.device), x.shape[2] // heads // 2)[:, None].to(x)
    first, second = x.unflatten(-1, (heads, -1)).chunk(2, dim=-1)
    turned = (first * turn.cos() - second * turn.sin(), first * turn.sin() + second * turn.cos())
    return torch.cat(turned, dim=-1).flatten(2)


class TextBlock(nn.Module):
    """Attention, then a two-layer network, each added to its input; the layer norms stand before (`pre_norm`) or after them."""

    def __init__(
        self, width: int, heads: int, ratio: int, *, causal: bool, pre_norm: bool, dropout: float, rotary: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.pre_norm, self.rotary = heads, causal, pre_norm, rotary
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.dense1, self.dense2 = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Return the tokens mixed by attention."""
        query, key = self.query(x), self.key(x)
        if self.rotary:
            query, key = rotate(query, self.heads), rotate(key, self.heads)
        projected = torch.cat([query, key, self.value(x)], dim=-1)
        mixed: Tensor = self.dropout(self.out(attend(projected, self.heads, causal=self.causal, real=real)))
        return mixed

    def dense(self, x: Tensor) -> Tensor:
        """Return the tokens after the two-layer network."""
        output: Tensor = self.dropout(self.dense2(F.gelu(self.dense1(x))))
        return output

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return tokens of the same shape; `real` (N x T) is False for padding."""
        if self.pre_norm:
            x = x + self.attention(self.norm1(x), real)
            return x + self.dense(self.norm2(x))
        x = self.norm1(x + self.attention(x, real))
        output: Tensor = self.norm2(x + self.dense(x))
        return output


class TextTransformer(nn.Module):
    """N x T token numbers to N x classes logits, or to N x T x vocabulary logits without `classes`.

    A classifier reads the last token of a causal network, else the first. `tied` uses the embedding as the language model's head.
    Tokens equal to `padding` are seen by no other token, and a causal classifier reads the last token before them.
    """

    def __init__(
        self, vocabulary: int, positions: int, width: int, blocks: list[TextBlock], *,
        classes: int | None, tied: bool, dropout: float, kind: str = "learned", padding: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if tied and classes is not None:
            raise InputError(
                "tied is for language models: a classifier's head has no row for each token; leave out one of the two"
            )
        self.read = None if classes is None else (-1 if blocks[0].causal else 0)
        self.kind, self.padding, self.positions = kind, padding, positions
        self.embedding = nn.Embedding(vocabulary, width)
        if kind == "learned":
            self.position = nn.Embedding(positions, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes or vocabulary, bias=not tied)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=DEVIATION)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        if tokens.shape[1] > self.positions:
            raise IndexError(f"{tokens.shape[1]} tokens are more than the {self.positions} positions")
        real = None if self.padding is None else tokens != self.padding
        x = self.dropout(self._placed(self.embedding(tokens)))
        for block in self.blocks:
            x = block(x, real)
        x = self.norm(x)
        if self.read == -1 and real is not None:
            last = (real.long() * torch.arange(tokens.shape[1], device=tokens.device)).argmax(1)
            x = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2]))
        output: Tensor = self.head(x if self.read is None else x[:, self.read])
        return output

    def _placed(self, x: Tensor) -> Tensor:
        """Return embedded tokens with their positions added; rotary ones are added by the blocks."""
        places = torch.arange(x.shape[1], device=x.device)
        if self.kind == "learned":
            x = x + self.position(places)
        elif self.kind == "sinusoidal":
            turn = angles(places, -(-x.shape[2] // 2))
            x = x + torch.stack([turn.sin(), turn.cos()], dim=-1).flatten(1)[:, : x.shape[2]].to(x)
        return x


def gpt(
    *, vocabulary: int = 2000, positions: int = 64, width: int = 128, heads: int = 4, depth: int = 3, ratio: int = 4,
    classes: int | None = None, tied: bool = False, pre_norm: bool = True, dropout: float = 0.0, causal: bool = True,
    kind: str = "learned", padding: int | None = None,
) -> TextTransformer:  # fmt: skip
    """Return a causal transformer: a language model, or a classifier of the last token with `classes`.

    `kind` of positions is learned, sinusoidal or rotary. `padding` is the token that fills short sentences.

    >>> gpt(classes=2)(torch.zeros(3, 12, dtype=torch.int64)).shape
    torch.Size([3, 2])
    """
    if positive("width", width) % positive("heads", heads):
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}")
    lookup({name: name for name in POSITIONS}, kind, "kind of positions")
    if kind == "rotary" and width // heads % 2:
        raise InputError(f"rotary positions need heads of an even width, got {width // heads}")
    rate = probability("dropout", dropout)
    blocks = [
        TextBlock(
            width, heads, positive("ratio", ratio), causal=causal, pre_norm=pre_norm, dropout=rate, rotary=kind == "rotary"
        )
        for _ in range(positive("depth", depth))
    ]  # fmt: skip
    classes = None if classes is None else positive("classes", classes)
    size = positive("vocabulary", vocabulary)
    if padding is not None and not 0 <= padding < size:
        raise InputError(f"padding must be a token in 0..{size - 1}, got {padding}")
    return TextTransformer(
        size, positive("positions", positions), width, blocks, classes=classes, tied=tied, dropout=rate, kind=kind,
        padding=padding,
    )  # fmt: skip


def bert(
    *, vocabulary: int = 2000, positions: int = 64, width: int = 128, heads: int = 4, depth: int = 3, ratio: int = 4,
    classes: int | None = None, tied: bool = False, pre_norm: bool = False, dropout: float = 0.0,
    kind: str = "learned", padding: int | None = None,
) -> TextTransformer:  # fmt: skip
    """Return a transformer in which every token sees all others; with `classes` a classifier of the first token."""
    return gpt(
        vocabulary=vocabulary, positions=positions, width=width, heads=heads, depth=depth, ratio=ratio, classes=classes,
        tied=tied, pre_norm=pre_norm, dropout=dropout, causal=False, kind=kind, padding=padding,
    )  # fmt: skip
