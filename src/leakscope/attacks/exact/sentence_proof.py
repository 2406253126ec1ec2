"""Which sentences of a batch an update proves: those without which its rows are not explained.

The rows G of a dense layer's update are `sum_j (dL/dy_j) x_j^T` over the tokens of the batch. With X the layer's inputs for a set of
sentences and P the projection on their span, the part that the set does not explain is `G (I - P)`.

Let every sentence of the batch be among those found. A false sentence can then be removed without leaving anything unexplained, because
the true ones remain. So a sentence whose removal leaves more than rounding is true in part. Whether every sentence was found shows in G
itself: a missing one leaves its own part unexplained, and then nothing is proved.

A needed sentence can still be false in some tokens, so each is compared with its rivals in its place:

- Tokens at the end of a causal sentence that the rows do not need are cut off: they have no gradient. If their inputs are a mixture of
  those before (a repeated token under rotary positions), the length is open and nothing is proved.
- A sentence with another candidate in one place, two tokens exchanged or, in an encoder, its last token left out must leave something
  unexplained. Behind a causal token all inputs depend on it, so there only the last place has rivals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from leakscope.attacks.exact.dense_readers import SharedInput, TokenNetwork
from leakscope.attacks.exact.ledger import never

Sentence = tuple[int, ...]
CLEAR = 4  # times the floor: what a removed sentence must leave unexplained
MOST_PROVED = 128  # sentences to prove; of more none is
DEPENDENT = 1e-11  # of the largest singular value of X: directions below it are rounding
MIXED = 0.01  # of an input's length: less outside of all other inputs says nothing about its gradient


def proved_sentences(
    network: TokenNetwork,
    source: SharedInput,
    rows: Tensor,
    floor: float,
    sentences: Sequence[Sentence],
    candidates: Sequence[Tensor] = (),
    over: Callable[[], bool] = never,
) -> tuple[tuple[Sentence, ...], tuple[Sentence, ...]]:
    """Return the sentences that the update allows and, of these, those that it proves.

    `rows` are K x width, parts of a spectral norm below `floor` are not told from rounding. Where the proved sentences explain all rows,
    the others are superfluous and not returned. `candidates` are the tokens by position of which rivals are made.
    Once the time is `over`, no further sentence is proved.
    """
    found = tuple(sentences)
    if not 0 < len(found) <= MOST_PROVED or over():
        return found, ()
    inputs = _inputs(network, source, found)
    if _unexplained(rows, inputs) > floor:
        return found, ()
    needed: dict[int, Sentence] = {}
    proved: list[Sentence] = []
    for k, sentence in enumerate(found):
        if over():
            return found, tuple(proved)
        others = _basis(inputs[:k] + inputs[k + 1 :], rows.shape[1])
        rest = rows - rows @ others @ others.mT
        if float(torch.linalg.matrix_norm(rest, 2)) <= CLEAR * floor:
            continue
        needed[k], whole = _cut(sentence, inputs[k], rest, others, CLEAR * floor) if source.causal else (sentence, True)
        if whole and not _has_rival(network, source, needed[k], rest, others, CLEAR * floor, candidates):
            proved.append(needed[k])
    enough = _unexplained(rows, [inputs[k][: len(each)] for k, each in needed.items()]) <= floor
    kept = [needed.get(k, each) for k, each in enumerate(found) if k in needed or not enough]
    return tuple(dict.fromkeys(kept)), tuple(proved)


def explains(
    network: TokenNetwork, source: SharedInput, rows: Tensor, floor: float, sentences: Sequence[Sentence]
) -> bool:
    """Return whether the sentences explain the rows up to rounding."""
    return _unexplained(rows, _inputs(network, source, sentences)) <= floor


def _cut(sentence: Sentence, x: Tensor, rest: Tensor, others: Tensor, limit: float) -> tuple[Sentence, bool]:
    """Return a causal sentence without the tokens at its end that the rest does not need, and whether its length is certain."""
    length, whole = len(sentence), True
    outside = x - x @ others @ others.mT
    while length > 1 and _left(rest, outside[None, : length - 1])[0] <= limit:
        before = _basis([outside[: length - 1]], x.shape[1])
        new = outside[length - 1] - outside[length - 1] @ before @ before.mT
        whole = whole and bool(new.norm() > MIXED * x[length - 1].norm())
        length -= 1
    return (sentence[:length], True) if whole else (sentence, False)


def _has_rival(
    network: TokenNetwork,
    source: SharedInput,
    sentence: Sentence,
    rest: Tensor,
    others: Tensor,
    limit: float,
    candidates: Sequence[Tensor],
) -> bool:
    """Return whether another sentence in the place of this one explains the rest as well."""
    length = len(sentence)
    places = range(length - 1, length) if source.causal else range(length)
    rivals = {
        (*sentence[:p], int(token), *sentence[p + 1 :])
        for p in places
        for token in (candidates[p] if p < len(candidates) else ())
    }
    if not source.causal:
        for i, j in combinations(range(length), 2):
            swapped = list(sentence)
            swapped[i], swapped[j] = sentence[j], sentence[i]
            rivals.add(tuple(swapped))
        rivals.add(sentence[:-1])
    several = [sorted(each for each in rivals - {sentence, ()} if len(each) == size) for size in (length, length - 1)]
    for each in several:
        if each:
            x = torch.stack(_inputs(network, source, each))
            if bool((_left(rest, x - x @ others @ others.mT) <= limit).any()):
                return True
    return False


def _inputs(network: TokenNetwork, source: SharedInput, sentences: Sequence[Sentence]) -> list[Tensor]:
    """Return the layer's inputs for each sentence, tokens x width."""
    inputs: dict[int, Tensor] = {}
    for length in {len(each) for each in sentences}:
        chosen = [k for k, each in enumerate(sentences) if len(each) == length]
        (read,) = network.read(torch.tensor([sentences[k] for k in chosen]), [source.layer])
        inputs |= dict(zip(chosen, read, strict=True))
    return [inputs[k] for k in range(len(sentences))]


def _basis(inputs: Sequence[Tensor], width: int) -> Tensor:
    """Return an orthonormal basis of the span of the inputs, width x rank."""
    if not inputs:
        return torch.zeros(width, 0, dtype=torch.float64)
    stacked = torch.cat(list(inputs))
    _, sizes, directions = torch.linalg.svd(stacked / stacked.norm(dim=1, keepdim=True), full_matrices=False)
    basis: Tensor = directions[sizes > DEPENDENT * sizes[0]].mT
    return basis


def _unexplained(rows: Tensor, inputs: Sequence[Tensor]) -> float:
    """Return the spectral norm of what the span of the inputs leaves of the rows."""
    basis = _basis(inputs, rows.shape[1])
    return float(torch.linalg.matrix_norm(rows - rows @ basis @ basis.mT, 2))


def _left(rows: Tensor, inputs: Tensor) -> Tensor:
    """Return the spectral norm of what each of A sets of inputs (A x tokens x width) leaves of the rows."""
    _, sizes, directions = torch.linalg.svd(inputs, full_matrices=False)
    directions = directions * (sizes > DEPENDENT * sizes.amax(-1, keepdim=True))[..., None]
    _, strengths, wanted = torch.linalg.svd(rows, full_matrices=False)
    rows = (strengths[:, None] * wanted)[strengths > DEPENDENT * strengths[0]]
    left: Tensor = torch.linalg.matrix_norm(rows - rows @ directions.mT @ directions, 2)
    return left
