"""Embeddings of a user's network as pure functions need them: dense gradients, and no rows that a forward pass rewrites."""

from __future__ import annotations

from torch import nn

from leakscope.core.errors import InputError
from leakscope.core.token_layers import EMBEDDINGS


def check_embeddings(module: nn.Module, title: str) -> None:
    """Refuse embeddings with `max_norm`: they rewrite every row that they look up, so running the network would change it."""
    for name, layer in module.named_modules():
        if isinstance(layer, EMBEDDINGS) and layer.max_norm is not None:
            raise InputError(
                f"{title}: {name or 'the embedding'} has max_norm, so looking a token up rewrites its row; shorten the rows once "
                "(torch.renorm) and set max_norm to None"
            )


def make_dense(module: nn.Module) -> None:
    """Make gradients of embeddings dense, in place: the same numbers, and sparse ones have no batched form."""
    for layer in module.modules():
        if isinstance(layer, EMBEDDINGS):
            layer.sparse = False
