"""SME's bounds on `min over the line of 1 - cos(w_0 - w_T, grad l(w_hat))`, with constants measured along the training.

Zhu et al. 2023, arXiv:2306.00127, Theorems 4.3 and 4.5. With L the Lipschitz constant of the loss, beta that of its gradient,
gamma its strong convexity, G_2 the part of gradients outside the best plane, eta the rate, T the steps, D = l(w_0) - l(w_T) the
decrease of the loss, E the largest gradient noise and w* the minimum:

    G^2   = G_2^2 eta / (1 - eta beta / 2)
    C_GD  = sqrt(T G^2 L^2 / D)
    (8)   (G_2 + C_GD)^2                                                              gradient descent
    (10)  2 eta + 2 eta^2 beta^2 T / (gamma (1 - G_2^2)) * D' / (l(w'_T) - l(w*))
          + (1 + G_2) / ((1 - sqrt eta) (1 - C_GD)) * (C_GD + L T E eta (1 + eta beta)^(T-1) / D') + G_2^2       SGD

(8) holds up to an error that vanishes with eta; (10) with the probability `1 - 3 T exp(-r)` of Eq. 9. D', w'_T belong to gradient
descent from the same w_0. L, beta and gamma are the worst over the paths and their lines, where the proofs use them, not over all
weights as in the theorems. A bound whose conditions fail is still reported, with the conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope_papers.theory.flows import best_place, descend
from leakscope_papers.theory.plane import off_plane, shares_in_plane

Value = Callable[[Tensor], Tensor]
MOST = 4096  # weights: the Hessian is dense


@dataclass(frozen=True, slots=True)
class Constants:
    """The worst over a set of points: gradient norm of the loss, largest and smallest curvature."""

    lipschitz: float
    smoothness: float
    convexity: float


def local_constants(loss: Value, points: Tensor) -> Constants:
    """Return L = max ||grad||, beta = max |curvature| and gamma = min curvature over the points (rows), from dense Hessians."""
    if points.shape[1] > MOST:
        raise InputError(f"local constants need dense Hessians: at most {MOST} weights, got {points.shape[1]}")
    gradients = torch.func.vmap(torch.func.grad(loss))(points)
    curvature = torch.linalg.eigvalsh(torch.func.vmap(torch.func.hessian(loss), chunk_size=8)(points))
    return Constants(
        lipschitz=float(gradients.norm(dim=1).max()),
        smoothness=float(curvature.abs().max()),
        convexity=float(curvature.min()),
    )


def lowest_near(loss: Value, start: Tensor, *, most: int = 100) -> float:
    """Return the minimum of a strongly convex loss, by Newton's method with halved steps; never below the true minimum.

    Curvatures are replaced by their absolute value, at least 1e-6 of the largest, so that every step goes down.

    >>> round(lowest_near(lambda w: (w - 3).square().sum() + 2, torch.zeros(2, dtype=torch.float64)), 9)
    2.0
    """
    at, value = start, float(loss(start))
    for _ in range(most):
        slope = torch.func.grad(loss)(at)
        sizes, axes = torch.linalg.eigh(torch.func.hessian(loss)(at))
        sizes = sizes.abs()
        if not float(sizes.max()) > 0:
            break
        step = axes @ (axes.T @ slope / sizes.clamp_min(1e-6 * float(sizes.max())))
        tries = ((at - step / 2**k) for k in range(30))
        lower = next((point for point in tries if float(loss(point)) < value), None)
        if lower is None:
            break
        at, value = lower, float(loss(lower))
    return value


def c_gd(g2: float, constants: Constants, *, rate: float, steps: int, fall: float) -> float:
    """Return C_GD of Theorem 4.5; infinity if the loss did not decrease or the rate is too large."""
    room = 1 - rate * constants.smoothness / 2
    if not fall > 0 or not room > 0:
        return math.inf
    return math.sqrt(steps * g2**2 * rate / room * constants.lipschitz**2 / fall)


def bound_gd(g2: float, constants: Constants, *, rate: float, steps: int, fall: float) -> float:
    """Return the right side of (8)."""
    return (g2 + c_gd(g2, constants, rate=rate, steps=steps, fall=fall)) ** 2


def bound_sgd(
    g2: float, constants: Constants, *, rate: float, steps: int, fall: float, above: float, noise: float
) -> float:
    """Return the right side of (10); `above` is l(w'_T) - l(w*), `noise` E_max. Infinity if a denominator is not positive."""
    share = c_gd(g2, constants, rate=rate, steps=steps, fall=fall)
    if not (share < 1 and rate < 1 and constants.convexity > 0 and above > 0 and g2 < 1):
        return math.inf
    beta, growth = constants.smoothness, (1 + rate * constants.smoothness) ** (steps - 1)
    flat = 2 * rate + 2 * rate**2 * beta**2 * steps / (constants.convexity * (1 - g2**2)) * fall / above
    rest = share + constants.lipschitz * steps * noise * rate * growth / fall
    return flat + (1 + g2) / ((1 - math.sqrt(rate)) * (1 - share)) * rest + g2**2


def confidence(constants: Constants, *, rate: float, steps: int, fall: float, noise: float) -> float:
    """Return `1 - 3 T exp(-r)` with r of Eq. 9; below 0 it is vacuous.

    Eq. 9 prints c where its lemma (Eq. 59) has c^2 in the first term; we use the lemma.
    """
    if noise == 0:
        return 1.0
    c = 1 / (math.sqrt(rate) * (1 + rate * constants.smoothness) ** (steps - 1))
    part = c * fall / (4 * constants.lipschitz * noise)
    return 1 - 3 * steps * math.exp(-min(4 * part**2 / steps, part))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The measured error, both bounds, their inputs, and which of their conditions hold."""

    measured: float
    gd: float
    sgd: float
    g2: float
    c_gd: float
    constants: Constants
    confidence: float
    conditions: Mapping[str, bool]

    @property
    def hold(self) -> bool:
        """Return whether all conditions of Theorem 4.3 hold."""
        return all(self.conditions.values())


def bounds_of(
    loss: Value, path: Tensor, *, rate: float, noise: float = 0.0, lowest: float | None = None, points: int = 21
) -> Bounds:
    """Return the bounds for a training along `path` (steps + 1 rows of weights) at a rate.

    `loss` is the true loss of flat weights, `noise` the largest gradient noise on the path (0 for gradient descent), `lowest` the
    minimum of the loss (default: `lowest_near`). Constants and G_2 are measured on the path and at `points` places on its line;
    with noise also on those of gradient descent from the same weights. L_sim is the best on the line of the path.
    """
    _check_training(path, rate)
    slope, steps = torch.func.grad(loss), len(path) - 1
    straight = path if noise == 0 else descend(slope, path[0], rate=rate, steps=steps)
    ways = [path] if noise == 0 else [path, straight]
    everywhere = torch.cat([torch.cat([way, _line(way, points)]) for way in ways])
    constants = local_constants(loss, everywhere)
    gradients = torch.stack([slope(point) for point in everywhere])
    g2 = float(off_plane(shares_in_plane(gradients)))
    _, cosine = best_place(slope, path[0], path[-1], points=points)
    fall = float(loss(path[0]) - loss(straight[-1]))
    share = c_gd(g2, constants, rate=rate, steps=steps, fall=fall)
    if lowest is None:  # without strong convexity (10) is vacuous, and there may be no minimum
        lowest = lowest_near(loss, straight[-1]) if constants.convexity > 0 else math.inf
    above = float(loss(straight[-1])) - lowest
    return Bounds(
        measured=float(1 - cosine),
        gd=bound_gd(g2, constants, rate=rate, steps=steps, fall=fall),
        sgd=bound_sgd(g2, constants, rate=rate, steps=steps, fall=fall, above=above, noise=noise),
        g2=g2,
        c_gd=share,
        constants=constants,
        confidence=confidence(constants, rate=rate, steps=steps, fall=fall, noise=noise),
        conditions={
            "strongly convex (gamma > 0)": constants.convexity > 0,
            "rate * beta < 1": rate * constants.smoothness < 1,
            "rate < 1": rate < 1,
            "the loss falls": fall > 0,
            "every step goes along the update (Eq. 7)": all(_least_cosine(slope, way) >= g2 for way in ways),
            "C_GD < 1": share < 1,
        },
    )


def _check_training(path: Tensor, rate: float) -> None:
    """Raise for an invalid training: a rate not above 0, no step, or weights that are not finite."""
    if not 0 < rate < math.inf:
        raise InputError(f"bounds_of(rate=...) must be in (0, inf), got {rate}")
    if path.ndim != 2 or len(path) < 2:
        raise InputError(f"bounds_of(path) must have at least 2 rows of weights, got the shape {tuple(path.shape)}")
    if not bool(path.isfinite().all()):
        first = int((~path.isfinite()).any(1).nonzero()[0])
        raise InputError(f"bounds_of(path) must be finite, got inf or NaN in row {first}: the training diverged")


def _line(way: Tensor, points: int) -> Tensor:
    """Return points on the straight line between the ends of a path."""
    alphas = torch.linspace(0, 1, points, dtype=way.dtype, device=way.device)
    return way[0] + alphas[:, None] * (way[-1] - way[0])


def _least_cosine(slope: Value, way: Tensor) -> float:
    """Return the smallest cosine between the gradients on a path and its update."""
    gradients = torch.stack([slope(point) for point in way])
    return float(torch.nn.functional.cosine_similarity(gradients, (way[0] - way[-1])[None], dim=1).min())
