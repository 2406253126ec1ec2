"""Peeling: batches read exactly from a first dense layer, sample by sample. Shariati and Alambardar Meybodi 2026.

For `z = W x + b` before a ReLU, unit j sums the samples that activate it, `G_j = c sum_i d_ij x_i` and `h_j = c sum_i d_ij`, with d_i
the gradient of sample i's loss by z and c the client's factor (1 / N for a mean). A unit with one sample gives `x = G_j / h_j`. The
network then tells d(x, l) for every label l: a candidate is a sample only if `h_j = c d_j(x, l)` on every unit that gave it. That
certifies the sample and its label; a mixture of samples fits no label. Certified samples are subtracted, which leaves units with one
sample fewer, and so on.

Differences from the paper: units are compared by random projections; tolerances follow from the precision of the update; several
copies of one sample are recognised; c is fitted where it is unknown (a clip of the whole update, another batch size, a learning
rate), from candidates that agree about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Slopes = Callable[[Tensor], Tensor]  # M x F inputs -> M x C x K: each label's gradient by the layer's output

ROUNDS = 64
PROJECTIONS = 8
CHUNK = 2**24  # numbers of `slopes` at a time
COPIES = 16  # most copies of one sample that are tried


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding may do, for updates of one dtype; `single` allows a certificate by one unit."""

    noise: float  # error of a sum, relative to the largest bias gradient
    same: float  # distance between two quotients of one sample
    fit: float  # relative error of a certificate
    single: bool


TOLERANCES = {
    torch.float64: Tolerance(noise=1e-14, same=1e-8, fit=1e-9, single=True),
    torch.float32: Tolerance(noise=3e-7, same=1e-5, fit=1e-3, single=False),
}


@dataclass(frozen=True, slots=True)
class Peeled:
    """Certified samples of one batch (K x F), their labels and units, the factor, and what is left of the two gradients."""

    inputs: Tensor
    labels: Tensor
    units: Tensor
    factor: float
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Candidates:
    """Quotients that one or more units share: M x F inputs, which units gave each (M x K), and its slopes (M x C x K)."""

    inputs: Tensor
    members: Tensor
    slopes: Tensor


def peel(
    weight: Tensor,
    bias: Tensor,
    slopes: Slopes,
    outside: Callable[[Tensor], Tensor],  # M x F inputs -> how far each is from the valid ones
    *,
    dtype: torch.dtype,
    factor: float | None,
    most: int,
) -> Peeled:
    """Return the samples of one batch that certify themselves, at most `most`; `factor` None: fit it."""
    tolerance = TOLERANCES[dtype]
    G, h = weight.double(), bias.double()
    noise = tolerance.noise * float(h.abs().max())
    inputs, labels, units = G.new_zeros(0, G.shape[1]), torch.zeros(0, dtype=torch.int64), list[int]()
    for _ in range(ROUNDS):
        candidates = _candidates(G, h, slopes, outside, noise, tolerance)
        if factor is None:
            factor = _fitted_factor(candidates, h, noise, tolerance)
        if factor is None or not len(candidates.inputs):
            break
        passed, label, copies = _certified(candidates, h, factor, noise, tolerance)
        passed = passed[: most - len(inputs)]
        if not len(passed):
            break
        chosen, times = label[passed], copies[passed]
        new = candidates.inputs[passed]
        pull = factor * times[:, None] * candidates.slopes[passed, chosen]
        G, h = G - pull.mT @ new, h - pull.sum(0)
        each = times.long()
        inputs = torch.cat([inputs, new.repeat_interleave(each, 0)])[:most]
        labels = torch.cat([labels, chosen.repeat_interleave(each)])[:most]
        units += candidates.members[passed].sum(1).repeat_interleave(each).tolist()
        if len(inputs) >= most:
            break
    return Peeled(inputs, labels, torch.tensor(units[:most]), factor or 0.0, G, h)


def _candidates(
    G: Tensor, h: Tensor, slopes: Slopes, outside: Callable[[Tensor], Tensor], noise: float, tolerance: Tolerance
) -> Candidates:
    """Return the distinct quotients inside the valid range, strongest units first, refined over the units that share each."""
    order = h.abs().argsort(descending=True)
    order = order[h[order].abs() > noise / tolerance.same]
    rows, error = G[order] / h[order, None], noise / h[order].abs()
    keep = outside(rows) <= tolerance.same + 10 * error
    order, rows, error = order[keep], rows[keep], error[keep] + tolerance.same
    directions = torch.randn(
        rows.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0), dtype=rows.dtype
    ).to(rows)
    shadows = rows @ (directions / directions.norm(dim=0))
    length = rows.norm(dim=1).clamp_min(1.0)
    apart = torch.stack([(s[:, None] - s).abs() for s in shadows.mT]).amax(0)
    near = apart <= (error + error[:, None]) * torch.maximum(length, length[:, None])
    members = _groups(near, order, len(h))
    if not len(members):
        return Candidates(rows[:0], members, rows.new_zeros(0, 1, len(h)))
    weights = members.to(h) * h
    refined = (weights @ G) / (weights * h).sum(1, keepdim=True)
    return Candidates(refined, members, slopes(refined))


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


def _misfits(candidates: Candidates, h: Tensor, factor: Tensor | float) -> Tensor:
    """Return M x C: the largest error of `h = factor * slope` on a candidate's units, relative to its largest bias gradient."""
    error = (h - factor * candidates.slopes).abs() * candidates.members[:, None]
    size = (h.abs() * candidates.members).amax(1).clamp_min(1e-300)
    return error.amax(2) / size[:, None]


def _certified(
    candidates: Candidates, h: Tensor, factor: float, noise: float, tolerance: Tolerance
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which candidates are certified, the label of every candidate, and how many copies of it there are."""
    units = candidates.members.sum(1)
    size = (h.abs() * candidates.members).amax(1).clamp_min(1e-300)
    allowed = tolerance.fit + 10 * noise / size
    copies = torch.ones_like(candidates.slopes[..., 0])
    if len(candidates.inputs):
        ratio = _best_factor(candidates, h) / factor
        copies = torch.where((units >= 3)[:, None], ratio.round().clamp(1, COPIES), copies)
    misfit, label = _misfits(candidates, h, factor * copies[..., None]).min(1)
    enough = units >= (1 if tolerance.single else 2)
    passed = ((misfit <= allowed) & enough).nonzero()[:, 0]
    return passed, label, copies.gather(1, label[:, None])[:, 0]


def _best_factor(candidates: Candidates, h: Tensor) -> Tensor:
    """Return M x C: the factor by which each label's slope explains a candidate's units best."""
    slopes = candidates.slopes * candidates.members[:, None]
    return (slopes @ h) / slopes.square().sum(2).clamp_min(1e-300)


def _fitted_factor(candidates: Candidates, h: Tensor, noise: float, tolerance: Tolerance) -> float | None:
    """Return the factor that most candidates of several units agree about; None if fewer than two do, unless one explains every unit."""
    if not len(candidates.inputs):
        return None
    size = (h.abs() * candidates.members).amax(1).clamp_min(1e-300)
    factors = _best_factor(candidates, h)
    misfit, label = _misfits(candidates, h, factors[..., None]).min(1)
    good = (misfit <= tolerance.fit + 10 * noise / size) & (candidates.members.sum(1) >= 3)
    values = factors.gather(1, label[:, None])[good, 0]
    values = values[values > 0]
    if not len(values):
        return None
    votes = ((values[:, None] - values).abs() <= 2 * tolerance.fit * values).sum(1)
    alone = len(values) == 1 and bool(candidates.members[good].any(0)[h.abs() > 1e3 * noise].all())
    return float(values[votes.argmax()]) if int(votes.max()) >= 2 or alone else None
