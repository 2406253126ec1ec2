"""Which sentences of a batch an update proves: those without which its rows are not explained.

The rows G of a dense layer's update are `sum_j (dL/dy_j) x_j^T` over the tokens of the batch. With X the layer's inputs for a set of
sentences and P the projection on their span, the part that the set does not explain is `G (I - P)`.

Let every sentence of the batch be among those found. A false sentence can then be removed without leaving anything unexplained, because
the true ones remain. So a sentence whose removal leaves more than rounding is true. Whether every sentence was found shows in G itself:
a missing one leaves its own part unexplained, and then nothing is proved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.attacks.exact.dense_readers import SharedInput, TokenNetwork

Sentence = tuple[int, ...]
CLEAR = 4  # times the floor: what a removed sentence must leave unexplained
MOST_PROVED = 128  # sentences to prove; of more none is
DEPENDENT = 1e-11  # of the largest singular value of X: directions below it are rounding


def proved_sentences(
    network: TokenNetwork, source: SharedInput, rows: Tensor, floor: float, sentences: Sequence[Sentence]
) -> tuple[tuple[Sentence, ...], tuple[Sentence, ...]]:
    """Return the sentences that the update allows and, of these, those that it proves.

    `rows` are K x width, parts of a spectral norm below `floor` are not told from rounding. Where the proved sentences explain all rows,
    the others are superfluous and not returned.
    """
    found = tuple(sentences)
    if not 0 < len(found) <= MOST_PROVED:
        return found, ()
    inputs = _inputs(network, source, found)
    if _unexplained(rows, inputs) > floor:
        return found, ()
    needed = [_unexplained(rows, inputs[:k] + inputs[k + 1 :]) > CLEAR * floor for k in range(len(found))]
    proved = tuple(each for each, need in zip(found, needed, strict=True) if need)
    rest = [each for each, need in zip(inputs, needed, strict=True) if need]
    return (proved if _unexplained(rows, rest) <= floor else found), proved


def explains(
    network: TokenNetwork, source: SharedInput, rows: Tensor, floor: float, sentences: Sequence[Sentence]
) -> bool:
    """Return whether the sentences explain the rows up to rounding."""
    return _unexplained(rows, _inputs(network, source, sentences)) <= floor


def _inputs(network: TokenNetwork, source: SharedInput, sentences: Sequence[Sentence]) -> list[Tensor]:
    """Return the layer's inputs for each sentence, tokens x width."""
    inputs: dict[int, Tensor] = {}
    for length in {len(each) for each in sentences}:
        chosen = [k for k, each in enumerate(sentences) if len(each) == length]
        (read,) = network.read(torch.tensor([sentences[k] for k in chosen]), [source.layer])
        inputs |= dict(zip(chosen, read, strict=True))
    return [inputs[k] for k in range(len(sentences))]


def _unexplained(rows: Tensor, inputs: Sequence[Tensor]) -> float:
    """Return the spectral norm of what the span of the inputs leaves of the rows."""
    if not inputs:
        return float(torch.linalg.matrix_norm(rows, 2))
    stacked = torch.cat(list(inputs))
    _, sizes, directions = torch.linalg.svd(stacked / stacked.norm(dim=1, keepdim=True), full_matrices=False)
    basis = directions[sizes > DEPENDENT * sizes[0]]
    return float(torch.linalg.matrix_norm(rows - rows @ basis.mT @ basis, 2))
