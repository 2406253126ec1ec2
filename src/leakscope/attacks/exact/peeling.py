"""Peeling: batches read exactly from a first dense layer, sample by sample. Shariati and Alambardar Meybodi 2026.

For `z = W x + b` before a ReLU, unit j sums the samples that activate it, `G_j = c sum_i d_ij x_i` and `h_j = c sum_i d_ij`, with d_i
the gradient of sample i's loss by z and c the client's factor (1 / N for a mean). A unit with one sample gives `x = G_j / h_j`. The
network then says d(x, l) for every label l: a candidate is a sample only if `h_j = c d_j(x, l)` on every unit that gave it. That
certifies the sample and its label; a mixture of samples fits no label. Certified samples are subtracted, which leaves units with one
sample fewer, and so on.

Differences from the paper: the gradient of the next dense layer is a second witness, whose column j sums the same samples, so that
float32 updates suffice; units are compared by random projections; tolerances follow from what was added and subtracted on each unit;
c is fitted where it is unknown (a clip of the whole update, another batch size, a learning rate), from candidates that agree about it.
Copies of one sample are not certified: where a softmax is saturated, k copies of a mean have the gradients of its k samples. For the same
reason only candidates whose slopes depend on the input may fit c (the means of several pairs would agree about 2 c). With two classes
all slopes have one direction, and some c fits any mixture: one candidate then fits c only where the update is of one sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.exact.joint_solution import NEAR, solve_together
from leakscope.attacks.exact.ledger import ROUNDING, Ledger, Peeled, Probe, Update, never, scaled, slopes_of, subtract
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY

ROUNDS = 64
UNITS = 4096  # strongest units of a layer that are divided in a round
PROJECTIONS = 8
CHUNK, WORK = 2**24, 2**27  # numbers of `slopes` at a time, and in a round
PART = 256  # candidates whose slopes are found at a time
COARSE = 1e-4  # error of a quotient, relative to its size, above which it is no candidate
SMALLER = 0.99
LEAST = {torch.float64: 1, torch.float32: 2}  # units of a certificate without a second witness


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Quotients that one or more units share: M x F inputs, which units gave each (M x K), and its slopes on these (M x C x U).

    `units`, M x U, are the places of a candidate's units, and `filled` says which of them are no padding.
    """

    inputs: Tensor
    members: Tensor
    units: Tensor
    filled: Tensor
    slopes: Tensor

    __repr__ = short_repr


def peel(
    update: Update,
    probe: Probe,
    *,
    factor: float | None,
    most: int,
    limit: int = 2**16,
    over: Callable[[], bool] = never,
) -> Peeled:
    """Return the samples of one batch that certify themselves, at most `most`; `factor` None: fit it.

    At most `limit` candidates are looked at in a round: those of several units first, then those of the strongest units.
    `over` is asked before each round, and True ends the search.
    """
    ledger = whole = Ledger.of(update)
    inputs, labels = Peeled.none(update).inputs, Peeled.none(update).labels
    errors = inputs.new_zeros(0)
    for _ in range(ROUNDS):
        if over():
            break
        candidates = _candidates(ledger, probe, limit)
        if factor is None:
            factor = _fitted_factor(candidates, ledger, probe, most)
        if factor is None:
            break
        passed, chosen = _certified(candidates, ledger, probe, factor)
        if not len(passed) and not over():  # rough quotients of several samples may look alike
            candidates = _candidates(ledger, probe, limit, alone=True)
            passed, chosen = _certified(candidates, ledger, probe, factor)
        if not len(passed):
            break
        known, rows, chosen = len(inputs), torch.cat([inputs, candidates.inputs[passed]]), torch.cat([labels, chosen])
        distinct = distinct_rows(rows, known)
        rows, errors = solve_together(whole, rows[distinct], chosen[distinct], errors, factor, probe)
        kept = errors <= NEAR
        inputs, labels, errors = rows[kept], chosen[distinct][kept], errors[kept]
        ledger = subtract(whole, inputs, labels, factor, probe)
        if len(inputs) >= most or len(inputs) == known:
            break
    return Peeled(inputs[:most], labels[:most], factor or 0.0, ledger.left)


def _candidates(ledger: Ledger, probe: Probe, limit: int, *, alone: bool = False) -> _Candidates:
    """Return the distinct quotients inside the valid range, refined over the units that share each; `alone`: of every unit."""
    G, h = ledger.left.weight, ledger.left.bias
    order = h.abs().argsort(descending=True)[:UNITS]
    error = ledger.error()[order] / h[order].abs().clamp_min(TINY**10)
    order, error = order[error < COARSE], error[error < COARSE]
    rows = G[order] / h[order, None]
    inside = probe.outside(rows) <= 10 * error
    order, rows, error = order[inside], rows[inside], error[inside]
    near = torch.eye(len(order), dtype=torch.bool, device=h.device)
    members = _groups(near if alone else near_rows(rows, error), order, len(h))
    members = members[(members.sum(1) < 2).int().argsort(stable=True)][:limit]
    refined, several = G[members.int().argmax(1)], members.sum(1) > 1
    refined = refined / h[members.int().argmax(1), None]
    weights = members[several].to(h) * h
    refined[several] = (weights @ G) / (weights * h).sum(1, keepdim=True)
    units, filled = _places(members)
    # slopes of all units at once would fill the memory where there are many classes
    parts = zip(refined.split(PART), units.split(PART), strict=True) if len(members) else ()
    slopes = [probe.slopes(rows).take_along_dim(places[:, None], 2) for rows, places in parts]
    return _Candidates(refined, members, units, filled, torch.cat(slopes) if slopes else h.new_zeros(0, 1, 1))


def _places(members: Tensor) -> tuple[Tensor, Tensor]:
    """Return for M x K members the places of each row's, M x U with U the most of a row, and which of them are no padding."""
    row, unit = members.nonzero(as_tuple=True)
    number = members.sum(1)
    place = torch.arange(len(row), device=row.device) - (number.cumsum(0) - number)[row]
    units = unit.new_zeros(len(members), int(number.amax()) if len(members) else 1)
    filled = torch.zeros_like(units, dtype=torch.bool)
    units[row, place], filled[row, place] = unit, True
    return units, filled


def near_rows(rows: Tensor, error: Tensor) -> Tensor:
    """Return M x M: which quotients may be equal within their relative errors, by random projections."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], PROJECTIONS, generator=generator, dtype=rows.dtype).to(rows)
    allowed = error * rows.norm(dim=1).clamp_min(1.0)
    near = torch.ones(len(rows), len(rows), dtype=torch.bool, device=rows.device)
    for shadow in (rows @ (directions / directions.norm(dim=0))).mT:
        near &= (shadow[:, None] - shadow).abs() <= allowed + allowed[:, None]
    return near


def distinct_rows(rows: Tensor, known: int) -> Tensor:
    """Return the places of the `known` first rows and of those that repeat no earlier one: several units may give one sample."""
    error = torch.full((len(rows),), NEAR, dtype=rows.dtype, device=rows.device)
    again = near_rows(rows, error).triu(1).any(0)
    again[:known] = False
    return (~again).nonzero()[:, 0]


def _groups(near: Tensor, order: Tensor, units: int) -> Tensor:
    """Return M x K: which units each group of near quotients has; every unit is in at most one."""
    free = torch.ones(len(order), dtype=torch.bool, device=near.device)
    groups = []
    for j in range(len(order)):
        if free[j]:
            group = near[j] & free
            free &= ~group
            groups.append(group)
    members = torch.zeros(len(groups), units, dtype=torch.bool, device=near.device)
    if groups:
        members[:, order] = torch.stack(groups)
    return members


def _certified(candidates: _Candidates, ledger: Ledger, probe: Probe, factor: float) -> tuple[Tensor, Tensor]:
    """Return which candidates are samples, and their labels."""
    factors = torch.full_like(candidates.slopes[..., 0], factor)
    misfit, label = _misfits(candidates, ledger, factors).min(1)
    passed = (misfit <= 1).nonzero()[:, 0]
    if probe.witness is None or ledger.left.columns is None or ledger.columns_size is None:
        enough = candidates.members[passed].sum(1) >= LEAST[ledger.left.dtype]
    elif len(passed):
        predicted, size = scaled(probe.witness(candidates.inputs[passed], label[passed]), factor)
        error = (ledger.left.columns - predicted).norm(dim=2)
        allowed = ROUNDING[ledger.left.dtype] * (ledger.columns_size + size)
        enough = ((error <= allowed) | ~candidates.members[passed]).all(1)
    else:
        enough = passed.bool()
    return passed[enough], label[passed][enough]


def _misfits(candidates: _Candidates, ledger: Ledger, factors: Tensor) -> Tensor:
    """Return M x C: the largest error of `h = factor * slope` on a candidate's units, over what rounding allows."""
    bias, allowed = (each[candidates.units][:, None] for each in (ledger.left.bias, ledger.error().clamp_min(TINY**10)))
    error = (bias - factors[..., None] * candidates.slopes).abs() / allowed
    return (error * candidates.filled[:, None]).amax(2)


def _best_factors(candidates: _Candidates, ledger: Ledger) -> Tensor:
    """Return M x C: the factor by which each label's slope explains a candidate's units best."""
    slopes = candidates.slopes * candidates.filled[:, None]
    along = (slopes @ ledger.left.bias[candidates.units][..., None])[..., 0]
    return along / slopes.square().sum(2).clamp_min(TINY**10)


def _fitted_factor(candidates: _Candidates, ledger: Ledger, probe: Probe, most: int) -> float | None:
    """Return the factor that most candidates of several units agree about; None if fewer than two do.

    Candidates whose slopes do not depend on the input have no vote. A single one that explains every unit is enough if the update is of
    one sample, or if the direction of its slopes depends on the input: no factor then fits a mixture.
    """
    if not len(candidates.inputs):
        return None
    factors = _best_factors(candidates, ledger)
    misfit, label = _misfits(candidates, ledger, factors).min(1)
    good = (misfit <= 1) & (candidates.members.sum(1) >= 2)
    least = 10 * ROUNDING[ledger.left.dtype]
    changed, turned = (change > least for change in _changes(candidates, good, label[good], probe))
    good[good.clone()] = changed
    values = factors.gather(1, label[:, None])[good, 0]
    positive = values > 0
    values, turned = values[positive], turned[changed][positive]
    if not len(values):
        return None
    votes = ((values[:, None] - values).abs() <= least * values).sum(1)
    live = ledger.left.bias.abs() > COARSE * ledger.left.bias.abs().max()
    alone = len(values) == 1 and bool(candidates.members[good].any(0)[live].all()) and (most == 1 or bool(turned[0]))
    return float(values[votes.argmax()]) if int(votes.max()) >= 2 or alone else None


def _changes(candidates: _Candidates, good: Tensor, labels: Tensor, probe: Probe) -> tuple[Tensor, Tensor]:
    """Return how much the slopes of the `good` candidates change where the input becomes a little smaller, and the part across them.

    Both are relative to the size of the slopes.
    """
    rows, units, filled = candidates.inputs[good], candidates.units[good], candidates.filled[good]
    slopes = candidates.slopes[good, :].take_along_dim(labels[:, None, None], 1)[:, 0] * filled
    parts = zip(rows.split(PART), labels.split(PART), units.split(PART), strict=True) if len(rows) else ()
    moved = [slopes_of(probe, SMALLER * x, y).take_along_dim(at, 1) for x, y, at in parts]
    change = (torch.cat(moved) * filled - slopes) if moved else slopes
    size = slopes.norm(dim=1, keepdim=True).clamp_min(TINY**10)
    along = slopes / size
    across = change - (change * along).sum(1, keepdim=True) * along
    return (change.norm(dim=1) / size[:, 0]), (across.norm(dim=1) / size[:, 0])
