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

One SVD `X = U S V^T` serves all sentences. What only sentence k explains are the directions W orthogonal to the inputs of all others:
`V S^-1 z` with `z` orthogonal to the others' rows of U, so with norm 1 in its own few rows. All that follows needs only `G W` and
inputs in coordinates of W, at most a sentence's tokens in number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from leakscope.attacks.exact.dense_readers import SharedInput, TokenNetwork
from leakscope.attacks.exact.ledger import never
from leakscope.attacks.exact.spans import largest_singular_value, thin_svd
from leakscope.core.short_repr import short_repr

Sentence = tuple[int, ...]
CLEAR = 4  # times the floor: what a removed sentence must leave unexplained
MOST_PROVED = 128  # sentences to prove; of more none is
DEPENDENT = 1e-11  # of the length of inputs: parts below it are rounding
OWN = 1 - 1e-6  # norm in a sentence's rows of U from which a direction may be its own
MIXED = 0.01  # of an input's length: less outside of all other inputs says nothing about its gradient


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of length 1 of several sentences (n x d), the sentence of each, and their SVD without rounding."""

    inputs: Tensor
    owner: Tensor
    left: Tensor  # n x rank
    sizes: Tensor
    basis: Tensor  # d x rank

    __repr__ = short_repr

    def outside(self, x: Tensor) -> Tensor:
        """Return the part of vectors (... x d) outside the span of the inputs."""
        return x - x @ self.basis @ self.basis.mT

    def own(self, k: int) -> Tensor:
        """Return an orthonormal basis (d x c) of the directions that only sentence k has."""
        mine = self.owner == k
        _, norms, chosen = thin_svd(self.left[mine])
        near = torch.linalg.qr((self.basis / self.sizes) @ chosen[norms > OWN].mT).Q
        others = pad(self.inputs[~mine] @ near, (0, 0, 0, near.shape[1]))  # as many rows as columns
        _, sizes, directions = thin_svd(others)
        own: Tensor = near @ directions[sizes <= DEPENDENT * self.sizes[0]].mT
        return own

    def coordinates(self, x: Tensor, own: Tensor) -> Tensor:
        """Return sets of inputs (A x t x d), without the span of the other sentences, in A x t x (c + t) coordinates.

        The first c are those of `own`, the others of the set's own directions outside the span of all inputs.
        """
        return torch.cat([x @ own, torch.linalg.qr(self.outside(x).mT, mode="r").R.mT], dim=-1).cpu()


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
    known = _collect(inputs)
    if float(largest_singular_value(known.outside(rows))) > floor:
        return found, ()
    needed: dict[int, Sentence] = {}
    proved: list[Sentence] = []
    for k, sentence in enumerate(found):
        if over():
            return found, tuple(proved)
        own = known.own(k)
        rest = torch.linalg.qr(rows @ own, mode="r").R.cpu()
        if not own.shape[1] or float(largest_singular_value(rest)) <= CLEAR * floor:
            continue
        x = (inputs[k] @ own).cpu()
        needed[k], whole = _cut(sentence, x, rest, CLEAR * floor) if source.causal else (sentence, True)
        several = _rivals(needed[k], candidates, causal=source.causal) if whole else []
        if whole and not any(_explained(network, source, known, own, rest, x, each, CLEAR * floor) for each in several):
            proved.append(needed[k])
    enough = _collect([inputs[k][: len(each)] for k, each in needed.items()]) if needed else None
    whole = enough is not None and float(largest_singular_value(enough.outside(rows))) <= floor
    kept = [needed.get(k, each) for k, each in enumerate(found) if k in needed or not whole]
    return tuple(dict.fromkeys(kept)), tuple(proved)


def explains(
    network: TokenNetwork, source: SharedInput, rows: Tensor, floor: float, sentences: Sequence[Sentence]
) -> bool:
    """Return whether the sentences explain the rows up to rounding."""
    return float(largest_singular_value(_collect(_inputs(network, source, sentences)).outside(rows))) <= floor


def _inputs(network: TokenNetwork, source: SharedInput, sentences: Sequence[Sentence]) -> list[Tensor]:
    """Return the layer's inputs for each sentence, tokens x width, each of length 1."""
    inputs: dict[int, Tensor] = {}
    for length in {len(each) for each in sentences}:
        chosen = [k for k, each in enumerate(sentences) if len(each) == length]
        (read,) = network.read(torch.tensor([sentences[k] for k in chosen]), [source.layer])
        inputs |= dict(zip(chosen, normalize(read, dim=-1), strict=True))
    return [inputs[k] for k in range(len(sentences))]


def _collect(inputs: Sequence[Tensor]) -> _Inputs:
    """Return the inputs of several sentences with their SVD."""
    together = torch.cat(list(inputs))
    owner = torch.arange(len(inputs)).repeat_interleave(torch.tensor([len(each) for each in inputs]))
    left, sizes, right = thin_svd(together)
    clear = sizes > DEPENDENT * sizes[0]
    return _Inputs(together, owner.to(together.device), left[:, clear], sizes[clear], right[clear].mT)


def _cut(sentence: Sentence, x: Tensor, rest: Tensor, limit: float) -> tuple[Sentence, bool]:
    """Return a causal sentence without the tokens at its end that the rest does not need, and whether its length is certain."""
    length, whole = len(sentence), True
    while length > 1 and _left(rest, x[None, : length - 1])[0] <= limit:
        new = _without(x[length - 1], x[: length - 1])
        whole = whole and bool(new.norm() > MIXED)
        length -= 1
    return (sentence[:length], True) if whole else (sentence, False)


def _rivals(sentence: Sentence, candidates: Sequence[Tensor], *, causal: bool) -> list[list[Sentence]]:
    """Return other sentences that could stand in the place of this one, those of one length together."""
    length = len(sentence)
    rivals = {
        (*sentence[:p], token, *sentence[p + 1 :])
        for p in range(length - 1 if causal else 0, length)
        for token in (candidates[p].tolist() if p < len(candidates) else ())
    }
    if not causal:
        for i, j in combinations(range(length), 2):
            swapped = list(sentence)
            swapped[i], swapped[j] = sentence[j], sentence[i]
            rivals.add(tuple(swapped))
        rivals.add(sentence[:-1])
    several = [sorted(each for each in rivals - {sentence, ()} if len(each) == size) for size in (length, length - 1)]
    return [each for each in several if each]


def _explained(
    network: TokenNetwork, source: SharedInput, known: _Inputs, own: Tensor, rest: Tensor, x: Tensor,
    rivals: Sequence[Sentence], limit: float,
) -> bool:  # fmt: skip
    """Return whether a rival of the sentence with the inputs `x`, in coordinates of `own`, explains the rest as well."""
    others = torch.stack(_inputs(network, source, rivals))
    if source.causal:  # they differ in the last token
        before, others = x[: others.shape[1] - 1], others[:, -1:]
        sets = known.coordinates(others, own)
        count = own.shape[1]
        sets = torch.cat([_without(sets[..., :count], before), sets[..., count:]], dim=-1)
        rest = _without(rest, before)
    else:
        sets = known.coordinates(others, own)
    return bool((_left(pad(rest, (0, sets.shape[-1] - rest.shape[1])), sets) <= limit).any())


def _without(x: Tensor, inputs: Tensor) -> Tensor:
    """Return vectors (... x c) without the span of inputs (t x c)."""
    _, sizes, directions = torch.linalg.svd(inputs, full_matrices=False)
    directions = directions[sizes > DEPENDENT]
    rest: Tensor = x - x @ directions.mT @ directions
    return rest


def _left(rows: Tensor, inputs: Tensor) -> Tensor:
    """Return the spectral norm of what each of A sets of inputs (A x t x c) leaves of the rows."""
    _, sizes, directions = torch.linalg.svd(inputs, full_matrices=False)
    directions = directions * (sizes > DEPENDENT)[..., None]
    return largest_singular_value(rows - rows @ directions.mT @ directions)
