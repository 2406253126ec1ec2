"""Layers that look token numbers up, and the token that fills short sentences, as a network declares it."""

from __future__ import annotations

from torch import nn

EMBEDDINGS = nn.Embedding | nn.EmbeddingBag


def padding_of(module: nn.Module, table: nn.Module | None = None) -> int | None:
    """Return the token that a network masks, else the `padding_idx` of the embedding that reads its tokens; None without either."""
    holders = (module, getattr(module, "network", None))
    found = [getattr(holder, "padding", None) for holder in holders] + [getattr(table, "padding_idx", None)]
    return next((padding for padding in found if isinstance(padding, int)), None)
