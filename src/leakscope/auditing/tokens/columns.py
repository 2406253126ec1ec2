"""Columns of a table that an embedding looks up: its rows show their categories, and no attack on tables reads or searches them."""

from __future__ import annotations

from torch import nn

from leakscope.attacks.exact.embedding_rows import bag_of_gradient, bag_of_weights
from leakscope.auditing.suite import Untested
from leakscope.core.token_layers import EMBEDDINGS
from leakscope.core.types import Shares
from leakscope.play import Exposure

UNREAD = "no attack on tables reads them, and no gradient leads a search to a whole number; recovered examples do not count them"


def unread_columns(module: nn.Module, exposure: Exposure) -> list[Untested]:
    """Return which embeddings show categories of the clients; not those that look up the same rows for every client, as positions do.

    An embedding is left out if all its rows moved (noise, or a layer that shares the table), or if it is not sent.
    """
    seen, unread = exposure.observation.rounds[0], []
    for layer, table in module.named_modules():
        name = f"{layer}.weight" if layer else "weight"
        if not isinstance(table, EMBEDDINGS) or name not in seen.sent:
            continue
        if exposure.observation.shares is Shares.GRADIENT:
            bags = [bag_of_gradient(rows) for rows in seen.sent[name]]
        else:
            bags = [bag_of_weights(old, new) for old, new in zip(seen.before[name], seen.sent[name], strict=True)]
        sets = [tuple(bag.tokens.tolist()) for bag in bags if bag.exact and 0 < len(bag.tokens) < table.num_embeddings]
        if len(set(sets)) > 1 or (len(sets) == exposure.trials == 1):
            few, many = min(map(len, sets)), max(map(len, sets))
            shown = f"{few}" if few == many else f"{few} to {many}"
            rows = (
                f"an update shows {shown} of the {table.num_embeddings} rows of layer {layer}: the categories it holds"
            )
            unread.append(Untested(f"categories that layer {layer} looks up", f"{rows}; {UNREAD}", failed=True))
    return unread
