"""Tokens and sentences behind dropout: the masks are unknowns that the span of a gradient determines.

Dropout turns the embedding e of a token and its position into `u = m * e / (1 - p)` with an unknown mask m, so no true input is known
and the plain span test finds none (GRAB, arXiv:2507.21198, therefore optimises masks). But u lies in a known subspace B: the span of
the first dense layers' update, taken back through the layer norm. u differs from `e / (1 - p)` in the few dropped coordinates only. So u
is the point of B with the least absolute distance, as in decoding by linear programming (Candes and Tao 2005, arXiv:math/0502327):

    min over c of sum_i |r_i|^q with r = e / (1 - p) - B c and q = 1/2, by reweighted least squares,

where a coordinate whose r_i does not lie between 0 and e_i / (1 - p), the values of a mask, weighs more. The mask is read off the
residual, and the input with that mask must lie in the span as without dropout; one wrong coordinate fails. Copies of a token
in one position have masks of their own, found by making dropped coordinates of a mask dear.

Sentences are put together as in the span test: a prefix of tokens with known masks gives the output a of the first attention, which
dropout masks too, and the residual that it is added to. The next dense layers' span decodes that mask the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.dense_readers import SharedInput, TokenNetwork
from leakscope.attacks.exact.ledger import never
from leakscope.attacks.exact.spans import off_span, thin_svd
from leakscope.core.short_repr import short_repr

STEPS = 40  # of reweighted least squares
FALL = 0.75  # of the smoothing, a step
POWER = 0.5  # of a residual
OUTSIDE = 4.0  # weight of a residual that no mask has
TURNS = 20  # of projections
MOST_PAIRS = 1024  # pairs of token and position decoded, those closest to the span
PART = 256  # pairs at once
FAR = 6.0  # deviations from the expected number of dropped coordinates
DEAR = 8.0  # weight of a known mask's dropped coordinates in the search for a copy
SHARP = 0.02  # distance from the span below which a mask with one wrong coordinate does not lie


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """A dropout whose output, through a layer norm or not, is what dense layers read: `dropout` and `norm` by name."""

    dropout: str
    norm: str | None
    rate: float


@dataclass(frozen=True, slots=True)
class Subspace:
    """The span that masked inputs lie in (d x k, orthonormal), and the distance of the layer's inputs N x d from its span."""

    basis: Tensor
    distance: Callable[[Tensor], Tensor]
    limit: float

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Atom:
    """A token in a position with the mask of its embedding (d)."""

    token: int = field(repr=False)
    place: int
    mask: Tensor

    __repr__ = short_repr


def find_masked(module: nn.Module, network: TokenNetwork, source: SharedInput, tokens: Tensor) -> MaskedInput | None:
    """Return the dropout that stands directly before these layers or their layer norm, or adds to what they read; None without one."""
    drops = {
        name: float(each.p)
        for name, each in module.named_modules()
        if "Dropout" in type(each).__name__ and each.training and 0 < getattr(each, "p", 0) < 1  # also `KeyedDropout`
    }
    norms = [name for name, each in network.module.named_modules() if isinstance(each, nn.LayerNorm)]
    if not drops:
        return None
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    order: list[str] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001  torch gives all
            if name not in seen:
                seen[name] = args[0], output
                order.append(name)

        return hook

    with ExitStack() as hooks:
        for name in (*drops, *norms):
            hooks.enter_context(network.module.get_submodule(name).register_forward_hook(note(name)))
        (x,) = network.read(tokens, [source.layer])
    norm = next((name for name in norms if name in seen and seen[name][1] is x), None)
    for before, between in (
        (x, None),
        (None if norm is None else seen[norm][0], norm),
    ):  # in eval mode a dropout returns its input
        direct = next((name for name in order if name in drops and seen[name][1] is before), None)
        if direct is not None:
            return MaskedInput(direct, between, drops[direct])
    if norm is None or not source.mixes:
        return None
    before = seen[norm][0]
    earlier = [name for name in order if name in drops and seen[name][1].shape == before.shape]
    return MaskedInput(earlier[-1], norm, drops[earlier[-1]]) if earlier else None


def subspace(network: TokenNetwork, masked: MaskedInput, span: Tensor, limit: float) -> Subspace:
    """Return the subspace of masked inputs: vectors that the layer norm maps into the span (d x k, orthonormal)."""
    width = len(span)
    if masked.norm is None:
        return Subspace(span, lambda x: off_span(x, span).nan_to_num(1.0), limit)
    norm = network.module.get_submodule(masked.norm)
    weight = norm.weight if isinstance(norm.weight, Tensor) else span.new_ones(width)
    shift = norm.bias if isinstance(norm.bias, Tensor) else span.new_zeros(width)
    columns = [span / weight[:, None], span.new_ones(width, 1)]
    if bool(shift.any()):
        columns.append((shift / weight)[:, None])
    left, sizes, _ = thin_svd(torch.cat(columns, dim=1))

    def through(u: Tensor) -> Tensor:
        return off_span(norm(u), span).nan_to_num(1.0)

    return Subspace(left[:, sizes > 1e-10 * sizes[0]], through, limit)


def decode_masks(
    target: Tensor, fixed: Tensor, rate: float, where: Subspace, price: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return masks m (N x d) such that `fixed + m * target` lies in the subspace, and whether each does so beyond doubt.

    `price` (N x d) weighs the coordinates.
    """
    price = torch.ones_like(target) if price is None else price
    parts = (each.split(PART) for each in (target, fixed.expand_as(target), price))
    decoded = [_decode(part, kept, cost, rate, where) for part, kept, cost in zip(*parts, strict=True)]
    return torch.cat([mask for mask, _ in decoded]), torch.cat([sure for _, sure in decoded])


def _decode(target: Tensor, fixed: Tensor, price: Tensor, rate: float, where: Subspace) -> tuple[Tensor, Tensor]:
    """Return masks and whether they are sure: reweighted least squares, then projections on masks and subspace in turn."""
    basis, aim = where.basis, fixed + target
    outer = (basis[:, :, None] * basis[:, None]).flatten(1)
    size = target.abs().mean(1, keepdim=True).clamp_min(1e-300)
    weights, rest = price, target
    for step in range(STEPS):
        normal = (weights @ outer).unflatten(1, (basis.shape[1], -1))
        middle = normal.diagonal(dim1=1, dim2=2)
        middle.add_(1e-14 * middle.mean(1, keepdim=True))
        best = torch.linalg.solve(normal, ((weights * aim) @ basis)[..., None])[..., 0]
        rest = aim - best @ basis.mT
        smooth = max(1e-9, 0.3 * FALL**step)
        outside = (rest / target - 0.5).abs() > 0.5 + smooth
        weights = price * ((rest / size).square() + smooth**2) ** (POWER / 2 - 1) * torch.where(outside, OUTSIDE, 1.0)
    mask = rest.abs() < 0.5 * target.abs()
    answer, sure = mask, _is_sure(mask, target, fixed, rate, where)
    for _ in range(TURNS):
        point = fixed + mask * target
        mask = (point @ basis @ basis.mT - fixed) / target > 0.5
        now = _is_sure(mask, target, fixed, rate, where) & ~sure
        answer, sure = torch.where(now[:, None], mask, answer), sure | now
    return answer, sure


def _is_sure(mask: Tensor, target: Tensor, fixed: Tensor, rate: float, where: Subspace) -> Tensor:
    """Return which masks give an input in the span and drop about as many coordinates as expected."""
    dropped, expected = (~mask).sum(1), rate * mask.shape[1]
    likely: Tensor = (dropped - expected).abs() <= FAR * (expected * (1 - rate)) ** 0.5 + 1
    sure: Tensor = likely & (where.distance(fixed + mask * target) <= min(where.limit, SHARP))
    return sure


def find_atoms(
    network: TokenNetwork,
    masked: MaskedInput,
    where: Subspace,
    tokens: Tensor,
    length: int,
    rank: int,
    over: Callable[[], bool] = never,
) -> list[Atom]:
    """Return the tokens by position whose masked embeddings lie in the subspace, copies included, at most `rank` of them."""
    tokens = tokens.to(network.device)
    (embedded,) = network.read(tokens[:, None].expand(-1, length), [masked.dropout])
    pairs = torch.cartesian_prod(tokens, torch.arange(length, device=tokens.device))
    full = embedded.flatten(0, 1) / (1 - masked.rate)
    off = (full - full @ where.basis @ where.basis.mT).norm(dim=1) / full.norm(dim=1)
    order = off.argsort()[:MOST_PAIRS]
    pairs, full = pairs[order], full[order]
    atoms: list[Atom] = []
    price = torch.ones_like(full)
    while len(pairs) and len(atoms) < rank and not over():
        masks, sure = decode_masks(full, full.new_zeros(()), masked.rate, where, price)
        known = {(each.token, each.place, tuple(each.mask.tolist())) for each in atoms}
        new = torch.tensor(
            [
                bool(ok) and (int(token), int(place), tuple(mask.tolist())) not in known
                for (token, place), mask, ok in zip(pairs.tolist(), masks, sure, strict=True)
            ],
            device=pairs.device,
        )
        pairs, full, price, masks = pairs[new], full[new], price[new], masks[new]
        atoms += [Atom(token, place, mask) for (token, place), mask in zip(pairs.tolist(), masks, strict=True)]
        price = torch.where(masks, price, DEAR * price)
    return atoms


def join_atoms(
    network: TokenNetwork,
    first: MaskedInput,
    second: MaskedInput,
    where: Subspace,
    atoms: Sequence[Atom],
    most: int,
    over: Callable[[], bool] = never,
) -> tuple[tuple[int, ...], ...]:
    """Return the sentences: prefixes of atoms that no other atom continues; the masks behind the first attention are decoded."""
    prefixes: list[tuple[Atom, ...]] = [()]
    ended: list[tuple[Atom, ...]] = []
    for place in range(max(each.place for each in atoms) + 1):
        here = [each for each in atoms if each.place == place]
        extended = [(*prefix, each) for prefix in prefixes for each in here]
        if not extended or over():
            break
        sure = _continues(network, first, second, where, extended).reshape(len(prefixes), len(here))
        open_, unused = ~sure.any(1), ~sure.any(0)
        if len(here) == len(prefixes) and int(open_.sum()) == int(unused.sum()) == 1:  # the last two belong together
            sure |= open_[:, None] & unused
        ended += [prefix for prefix, goes in zip(prefixes, sure.any(1).tolist(), strict=True) if prefix and not goes]
        prefixes = [each for each, ok in zip(extended, sure.flatten().tolist(), strict=True) if ok][:most]
    whole = ended + [each for each in prefixes if each]
    return tuple(dict.fromkeys(tuple(each.token for each in prefix) for prefix in whole))


def _continues(
    network: TokenNetwork,
    first: MaskedInput,
    second: MaskedInput,
    where: Subspace,
    extended: Sequence[tuple[Atom, ...]],
) -> Tensor:
    """Return whether the last token's input of the later layer lies in its span under some mask."""
    masks = torch.stack([torch.stack([each.mask for each in prefix]) for prefix in extended])
    tokens = torch.tensor([[each.token for each in prefix] for prefix in extended])

    def drop(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:  # noqa: ARG001  torch gives all
        return output * masks / (1 - first.rate)

    with network.module.get_submodule(first.dropout).register_forward_hook(drop):
        added, total = network.read(tokens, [second.dropout, str(second.norm)])
    added, total = added[:, -1], total[:, -1]
    _, sure = decode_masks(added / (1 - second.rate), total - added, second.rate, where)
    return sure


def tokens_that_moved(module: nn.Module, update: dict[str, Tensor], vocabulary: int) -> Tensor:
    """Return the tokens whose row of the embedding is in the update and not 0; all without such a table."""
    for name, each in module.named_modules():
        rows = update.get(f"{name}.weight")
        if isinstance(each, nn.Embedding) and each.num_embeddings == vocabulary and rows is not None:
            return (rows != 0).any(1).nonzero()[:, 0]
    return torch.arange(vocabulary)
