"""The small GPT and BERT as classifiers of sentences, built as scenario files name them; see `transformer_text`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from leakscope.core.errors import InputError
from leakscope.models.token_model import TokensFromNumbers
from leakscope.models.transformer_text import bert, gpt


def gpt_classifier(
    *, input_shape: Sequence[int] = (8,), classes: int = 2, vocabulary: int = 2000, width: int = 128, heads: int = 4,
    depth: int = 3, ratio: int = 4, pre_norm: bool = True, dropout: float = 0.0, kind: str = "learned", padding: int | None = None,
) -> nn.Module:  # fmt: skip
    """Return a small GPT that classifies sentences by their last token."""
    return TokensFromNumbers(
        gpt(
            vocabulary=vocabulary, positions=_length(input_shape), width=width, heads=heads, depth=depth, ratio=ratio,
            classes=classes, pre_norm=pre_norm, dropout=dropout, kind=kind, padding=padding,
        )
    )  # fmt: skip


def bert_classifier(
    *, input_shape: Sequence[int] = (8,), classes: int = 2, vocabulary: int = 2000, width: int = 128, heads: int = 4,
    depth: int = 3, ratio: int = 4, pre_norm: bool = False, dropout: float = 0.0, kind: str = "learned", padding: int | None = None,
) -> nn.Module:  # fmt: skip
    """Return a small BERT that classifies sentences by their first token."""
    return TokensFromNumbers(
        bert(
            vocabulary=vocabulary, positions=_length(input_shape), width=width, heads=heads, depth=depth, ratio=ratio,
            classes=classes, pre_norm=pre_norm, dropout=dropout, kind=kind, padding=padding,
        )
    )  # fmt: skip


def _length(input_shape: Sequence[int]) -> int:
    """Return the number of tokens of an input."""
    if len(input_shape) != 1:
        raise InputError(f"a network over token numbers needs inputs of shape (tokens,), got {tuple(input_shape)}")
    return input_shape[0]
