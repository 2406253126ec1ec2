"""Small transformers over token numbers: a decoder as GPT-2 (causal) and an encoder as BERT.

Radford et al. 2019 (GPT-2): token and position embeddings, pre-norm blocks of causal attention and a two-layer network with GELU, a
last layer norm. Devlin et al. 2019, arXiv:1810.04805 (BERT): the same without causality. First weights as GPT-2's: N(0, 0.02^2),
biases 0. Queries, keys and values are layers of their own, so that low-rank adapters can sit on some of them (`low_rank`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.models.settings import positive, probability
from leakscope.models.vit import attend

DEVIATION = 0.02  # of the first weights


class TextBlock(nn.Module):
    """Attention, then a two-layer network, each added to its input; the layer norms stand before (`pre_norm`) or after them."""

    def __init__(self, width: int, heads: int, ratio: int, *, causal: bool, pre_norm: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.pre_norm = heads, causal, pre_norm
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.dense1, self.dense2 = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        """Return the tokens mixed by attention."""
        projected = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)
        mixed: Tensor = self.dropout(self.out(attend(projected, self.heads, causal=self.causal)))
        return mixed

    def dense(self, x: Tensor) -> Tensor:
        """Return the tokens after the two-layer network."""
        output: Tensor = self.dropout(self.dense2(F.gelu(self.dense1(x))))
        return output

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        if self.pre_norm:
            x = x + self.attention(self.norm1(x))
            return x + self.dense(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        output: Tensor = self.norm2(x + self.dense(x))
        return output


class TextTransformer(nn.Module):
    """N x T token numbers to N x classes logits, or to N x T x vocabulary logits without `classes`.

    A classifier reads the last token of a causal network, else the first. `tied` uses the embedding as the language model's head.
    """

    def __init__(
        self, vocabulary: int, positions: int, width: int, blocks: list[TextBlock], *,
        classes: int | None, tied: bool, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        if tied and classes is not None:
            raise InputError(
                "tied is for language models: a classifier's head has no row for each token; leave out one of the two"
            )
        self.read = None if classes is None else (-1 if blocks[0].causal else 0)
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
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
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.position(places))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        output: Tensor = self.head(x if self.read is None else x[:, self.read])
        return output


def gpt(
    *, vocabulary: int = 2000, positions: int = 64, width: int = 128, heads: int = 4, depth: int = 3, ratio: int = 4,
    classes: int | None = None, tied: bool = False, pre_norm: bool = True, dropout: float = 0.0, causal: bool = True,
) -> TextTransformer:  # fmt: skip
    """Return a causal transformer: a language model, or a classifier of the last token with `classes`.

    >>> gpt(classes=2)(torch.zeros(3, 12, dtype=torch.int64)).shape
    torch.Size([3, 2])
    """
    if positive("width", width) % positive("heads", heads):
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}")
    rate = probability("dropout", dropout)
    blocks = [
        TextBlock(width, heads, positive("ratio", ratio), causal=causal, pre_norm=pre_norm, dropout=rate)
        for _ in range(positive("depth", depth))
    ]
    classes = None if classes is None else positive("classes", classes)
    size = positive("vocabulary", vocabulary)
    return TextTransformer(
        size, positive("positions", positions), width, blocks, classes=classes, tied=tied, dropout=rate
    )


def bert(
    *, vocabulary: int = 2000, positions: int = 64, width: int = 128, heads: int = 4, depth: int = 3, ratio: int = 4,
    classes: int | None = None, tied: bool = False, pre_norm: bool = False, dropout: float = 0.0,
) -> TextTransformer:  # fmt: skip
    """Return a transformer in which every token sees all others; with `classes` a classifier of the first token."""
    return gpt(
        vocabulary=vocabulary, positions=positions, width=width, heads=heads, depth=depth, ratio=ratio, classes=classes,
        tied=tied, pre_norm=pre_norm, dropout=dropout, causal=False,
    )  # fmt: skip
