"""SPEAR: a batch unmixed from a first dense layer whose units no sample has alone. Dimitrov et al. 2024, arXiv:2403.03945.

The layer's gradient is `G = D^T X` with D, b x K, the gradients of b samples by its output, and has rank b. With `G = L R` there is one
Q with `D^T = L Q` and `X = Q^-1 R` (theorems 3.1 and 3.2). A column of Q makes `L q` zero on every unit that a sample leaves off. The
paper draws b - 1 rows of L, takes the vector q that they annul and keeps it if `L q` has many zeros, which needs about 2^b draws. Here
such vectors and the rows themselves are starts of a descent of `|L q|_1` on the sphere, as in SPEAR++ (Bakarsky et al. 2025,
arXiv:2510.24200), by reweighted least squares: thousands fewer draws. The sparsest independent directions make Q, and the bias
gradient its scale. The samples then have labels and gradients by the network; where only some of them agree, the others are searched
again in the span of their directions.

Certificate: the network's gradients for these samples and labels, summed, equal the whole update of this layer and the next one to
rounding, on at least twice as many units as samples, and determine each sample. Zeros of D are then those of the activation. A mixture
fits no label; samples with proportional gradients lower the rank and are not told apart, so they are not certified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.exact.joint_solution import NEAR, errors_of
from leakscope.attacks.exact.ledger import ROUNDING, Ledger, Peeled, Probe, Update, never, slopes_of, subtract
from leakscope.core.tree import TINY

MOST = 64  # samples that are unmixed at a time
TOO_MANY = 2  # times the samples of the threat model, whose number may be wrong
ROWS = 1024  # strongest units on which directions are searched
STARTS = 128  # descents at a time
STEPS, SHRINK = 60, 0.7  # of a descent, and of its smoothing in each
POWERS = (
    1.0,
    0.5,
    0.3,
)  # of |U q| in the descents of a group: directions with few zeros are minima of small powers only
SILENT = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
}  # zero of a direction on a unit, and length of a unit's row beside the longest
SPARSE = 0.1  # share of zeros of a direction, but no more than twice those that any direction may have
APART = 0.05  # length of a direction outside the span of those chosen
TRIES = (
    4  # groups of starts after which a layer is given up if not half of the directions are sparse, such as one of tanh
)
POLISH = 4
POOL = 16  # directions that are kept, in units of the samples
AGREES = 1e-3  # misfit of a sample with its label
NARROW = 4 * STARTS  # starts of a search among the directions of samples that do not agree


def unmix(
    update: Update,
    peeled: Peeled,
    probe: Probe,
    *,
    factor: float | None,
    samples: int,
    draws: int,
    seed: int,
    over: Callable[[], bool] = never,
) -> Peeled:
    """Return `peeled` with all other samples of the batch, if they certify themselves within `draws` starts; else as it is.

    `factor` is the weight of a sample by the threat model, None: unknown. Of a rank far above `samples`, the number that the threat
    model names, nothing is tried: such an update is noisy. `over` is asked before each step, and True ends the search.
    """
    if over():
        return peeled
    whole = Ledger.of(update)
    G, h = peeled.rest.weight, peeled.rest.bias
    left, values, right = torch.linalg.svd(G, full_matrices=False)
    cut = ROUNDING[update.dtype] * torch.linalg.matrix_norm(update.weight, 2)
    rank = int((values > cut).sum())
    if not 0 < rank <= min(MOST, len(h) // 2, TOO_MANY * samples):
        return peeled
    L, R = left[:, :rank], values[:rank, None] * right[:rank]
    search = partial(_directions, zero=SILENT[update.dtype], seed=seed, over=over)
    for Q in search(L, draws=draws):
        if Q.shape[1] < rank:
            continue
        unmixed = _narrowed(Q, L, partial(_fit, L=L, R=R, h=h, probe=probe), search, over)
        if unmixed.right < rank:
            continue
        rows, labels = torch.cat([peeled.inputs, unmixed.inputs]), torch.cat([peeled.labels, unmixed.labels])
        weight = _weight(unmixed.factor, peeled.factor, factor, len(rows))
        if weight is not None and (certified := certify_batch(whole, rows, labels, weight, probe)) is not None:
            return certified
    return peeled


@dataclass(frozen=True, slots=True)
class _Fit:
    """Samples by one choice of directions, their labels, the factor, and how far the network's gradients are from those unmixed."""

    inputs: Tensor
    labels: Tensor
    factor: float
    misfit: Tensor

    @property
    def right(self) -> int:
        """Return the number of samples whose gradients agree."""
        return int((self.misfit <= AGREES).sum())


def _fit(Q: Tensor, *, L: Tensor, R: Tensor, h: Tensor, probe: Probe) -> _Fit:
    """Return the samples `Q^-1 R`, with Q scaled so that the gradients `L Q` sum to the bias gradient, and the label nearest to each."""
    scaled = Q * torch.linalg.lstsq(L @ Q, h[:, None]).solution.mT
    rows, pulls = torch.linalg.solve_ex(scaled, R)[0].nan_to_num(), (L @ scaled).mT
    slopes = probe.slopes(rows)
    factors = (slopes @ pulls[..., None])[..., 0] / slopes.square().sum(2).clamp_min(TINY**10)
    misfit, labels = (pulls[:, None] - factors[..., None] * slopes).norm(dim=2).min(1)
    chosen = float(factors.gather(1, labels[:, None]).median())
    return _Fit(rows, labels, chosen, misfit / pulls.norm(dim=1).clamp_min(TINY**10))


def _weight(fitted: float, certified: float, factor: float | None, samples: int) -> float | None:
    """Return the weight of a sample, or None if it tells of samples that are one here: k samples with one gradient weigh k times as much.

    A clip lowers the weight that the threat model names. Of a mean of as many samples as there are, each weighs 1 / samples.
    """
    for exact in filter(None, (certified, factor, 1 / samples)):
        if abs(fitted - exact) <= AGREES * exact:
            return exact
    lower = samples > 1 if factor is None else 0 < fitted < factor
    return fitted if lower and not certified else None


def _narrowed(
    Q: Tensor,
    L: Tensor,
    fit: Callable[[Tensor], _Fit],
    search: Callable[..., Iterator[Tensor]],
    over: Callable[[], bool],
) -> _Fit:
    """Return the best fit after the directions of samples that do not agree are searched again, among themselves.

    `R = sum_i q_i x_i` whatever the directions. If those of some samples are right, the wrong ones span what the right ones of the
    other samples span: a space of fewer dimensions, in which they are found sooner.
    """
    best = fit(Q)
    while 0 < best.right < Q.shape[1] - 1 and not over():
        wrong = best.misfit > AGREES
        basis = torch.linalg.qr(Q[:, wrong]).Q
        trials = (
            torch.cat([Q[:, ~wrong], basis @ q], 1) for q in search(L @ basis, draws=NARROW) if len(q) == q.shape[1]
        )
        better = next(((trial, found) for trial in trials if (found := fit(trial)).right > best.right), None)
        if better is None:
            break
        Q, best = better
    return best


def _directions(L: Tensor, *, zero: float, draws: int, seed: int, over: Callable[[], bool]) -> Iterator[Tensor]:
    """Return after each group of starts the sparsest independent directions q so far, b x at most b; end if few are sparse."""
    length = L.norm(dim=1)
    strongest = length.argsort(descending=True)[:ROWS]
    U = L[strongest[length[strongest] > zero * length.max()]]
    U = U / U.norm(dim=1, keepdim=True)
    generator = torch.Generator().manual_seed(seed)
    pool = basis = U.new_zeros(0, L.shape[1])
    for number in range(-(-draws // STARTS)):
        if (number >= TRIES and 2 * len(basis) < L.shape[1]) or over():
            return
        chosen = torch.randint(len(U), (STARTS,), generator=generator).to(U.device)
        starts = _null_vectors(U, generator) if number % 2 else U[chosen]
        outside = torch.rand(STARTS, 1, generator=generator, dtype=U.dtype).to(U)
        away = starts - outside * (starts @ _projector(basis))
        # a direction with few zeros may be no minimum, but it is a start where few directions are left
        found = [pool, starts / starts.norm(dim=1, keepdim=True).clamp_min(TINY)] if number % 2 else [pool]
        descended = _descend(U, away, POWERS[number // 2 % len(POWERS)], over)
        if over():  # descents that were stopped are no minima
            return
        pool, places = _sparsest(torch.cat([*found, descended]), U, zero)
        pool[places] = basis = _sharpened(pool[places], U, zero)
        yield basis.mT


def _null_vectors(U: Tensor, generator: torch.Generator) -> Tensor:
    """Return vectors that b - 1 drawn rows of U annul, one for each start."""
    K, b = U.shape
    chosen = torch.rand(STARTS, K, generator=generator).topk(min(b - 1, K), dim=1).indices.to(U.device)
    last = torch.randn(STARTS, b - chosen.shape[1], b, generator=generator, dtype=U.dtype).to(U)
    wanted = U.new_zeros(STARTS, b)
    wanted[:, -1] = 1
    solved: Tensor = torch.linalg.solve_ex(torch.cat([U[chosen], last], 1), wanted)[0]
    return solved


def _projector(rows: Tensor) -> Tensor:
    """Return the projector on the span of independent rows."""
    basis = torch.linalg.qr(rows.mT).Q
    projector: Tensor = basis @ basis.mT
    return projector


def _descend(U: Tensor, starts: Tensor, power: float = 1.0, over: Callable[[], bool] = never) -> Tensor:
    """Return local minima of `sum |U q|^p` on the unit sphere: `q <- A^-1 q`, `A = U^T diag(|U q|^(p - 2)) U`, smoothed less and less."""
    b = U.shape[1]
    squares = (U[:, :, None] * U[:, None]).flatten(1)
    q: Tensor = starts / starts.norm(dim=1, keepdim=True).clamp_min(TINY)
    for step in range(STEPS):
        if over():
            break
        smooth = max(0.1 * SHRINK**step, 1e-9)
        weights = ((q @ U.mT).square() + smooth**2).pow(power / 2 - 1)
        q = torch.linalg.solve_ex((weights @ squares).unflatten(1, (b, b)), q)[0]
        q = q / q.norm(dim=1, keepdim=True)
    return q


def _sparsest(directions: Tensor, U: Tensor, zero: float) -> tuple[Tensor, list[int]]:
    """Return the distinct sparse directions, the sparsest first, and the places of independent ones: each the sparsest outside the span."""
    directions = directions[directions.isfinite().all(1)]
    zeros = ((directions @ U.mT).abs() <= zero).sum(1)
    order = zeros.argsort(descending=True, stable=True)
    order = order[zeros[order] >= min(SPARSE * len(U), 2 * U.shape[1])]
    directions, zeros = directions[order], zeros[order]
    again = ((directions @ directions.mT).abs() >= 1 - zero).triu(1).any(0)
    directions = directions[~again][: POOL * U.shape[1]]
    places: list[int] = []
    outside = directions
    for _ in range(min(directions.shape)):
        free = outside.norm(dim=1) > APART
        if not bool(free.any()):
            break
        places.append(int(free.int().argmax()))
        unit = outside[places[-1]] / outside[places[-1]].norm()
        outside = outside - (outside @ unit)[:, None] * unit
    return directions, places


def _sharpened(directions: Tensor, U: Tensor, zero: float) -> Tensor:
    """Return each direction as the vector that the units annul on which it is zero: the descent ends at its smoothing."""
    silent = (directions @ U.mT).abs() <= zero
    annulled: Tensor = torch.linalg.svd(silent[..., None] * U, full_matrices=False).Vh[:, -1]
    return annulled


def certify_batch(whole: Ledger, inputs: Tensor, labels: Tensor, factor: float, probe: Probe) -> Peeled | None:
    """Return these samples if they explain the whole update to rounding, as they are or solved together a few times; else None."""
    for _ in range(POLISH):
        ledger = subtract(whole, inputs, labels, factor, probe)
        pulls = factor * slopes_of(probe, inputs, labels)
        size = _sizes(ledger.size)
        if _explained(ledger, inputs, size) and bool(
            (errors_of((pulls / size).mT, ROUNDING[whole.left.dtype]) <= NEAR).all()
        ):
            return Peeled(inputs, labels, factor, ledger.left)
        inputs = torch.linalg.lstsq((pulls / size).mT, whole.left.weight / size[:, None]).solution.nan_to_num()
        factor *= float((pulls.sum(0) @ whole.left.bias) / pulls.sum(0).square().sum().clamp_min(TINY**10))
    return None


def _explained(ledger: Ledger, inputs: Tensor, size: Tensor) -> bool:
    """Return whether nothing but rounding is left of the update on any unit."""
    left, rounding = ledger.left, ROUNDING[ledger.left.dtype]
    explained = left.bias.abs() <= rounding * size
    explained &= left.weight.norm(dim=1) <= rounding * size * inputs.norm(dim=1).max().clamp_min(1.0)
    if left.columns is not None and ledger.columns_size is not None:
        explained &= left.columns.norm(dim=1) <= rounding * _sizes(ledger.columns_size)
    return bool(explained.all())


def _sizes(magnitudes: Tensor) -> Tensor:
    """Return what a unit's rounding is a share of: its own sum, and the mean, as deep networks round before they cancel."""
    return (magnitudes + magnitudes.mean()).clamp_min(TINY**10)
