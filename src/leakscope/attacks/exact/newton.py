"""A batch solved from the gradient of a dense layer of any activation, from a start near it, and certified.

With `G = L R` of rank b the inputs are `X = P R` for one P, b x b. The network says the gradients D(X) of inputs with labels by the layer's
output, so P solves

    c D(P R)^T P = L   and   c D(P R)^T 1 = h,

K (b + 1) equations for b^2 unknowns. They need no zeros in D: tanh and GELU will do, and the last layer of a network, whose gradients are
`softmax(W f + b) - y`. Levenberg-Marquardt steps lead from an approximate batch (`cpa`, quotients of the last layer) to the exact one. The
certificate is that of SPEAR. With fewer than twice as many units as samples nothing is certified: other batches might fit as well.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks.exact.ledger import Ledger, Peeled, Probe, Update, never, slopes_of
from leakscope.attacks.exact.spear import certify_batch
from leakscope.core.tree import TINY

STEPS = 40
SOLVED = 1e-12  # residual, relative to the update, at which the search ends
DAMPING, LESS, MORE, MOST = (
    1e-3,
    0.2,
    5.0,
    1e6,
)  # relative to the mean curvature; after a step that gains, and after one that does not
WORK = 2**26  # numbers of the largest tensor, above which nothing is tried


def solve_batch(
    update: Update, start: Tensor, factor: float, probe: Probe, classes: int, over: Callable[[], bool] = never
) -> Peeled | None:
    """Return the batch (b x F) near `start` that explains the whole update of a layer to rounding; None if there is none.

    `factor` is the weight of a sample in the update. `over` is asked before each step, and True ends the search.
    """
    b, K = len(start), len(update.bias)
    if 2 * b > K or b**3 * classes * K > WORK or over():
        return None
    left, values, right = torch.linalg.svd(update.weight, full_matrices=False)
    L, R = left[:, :b] * values[:b], right[:b]
    P = start @ R.mT
    labels = _nearest_labels(L, P, R, probe)
    size = update.weight.norm()

    def residual(mixing: Tensor) -> Tensor:
        pulls = factor * slopes_of(probe, mixing @ R, labels)
        return torch.cat([(pulls.mT @ mixing - L) / size, (pulls.sum(0) - update.bias)[:, None] / size], 1).flatten()

    solved = _least_squares(residual, P, over)
    return certify_batch(Ledger.of(update), solved @ R, labels, factor, probe)


def _nearest_labels(L: Tensor, P: Tensor, R: Tensor, probe: Probe) -> Tensor:
    """Return for each row of `P R` the label whose gradient points most as the update's part, `L P^-1`."""
    pulls = (L @ torch.linalg.pinv(P)).mT
    slopes = probe.slopes(P @ R)
    lengths = slopes.norm(dim=2) * pulls.norm(dim=1, keepdim=True)
    nearest: Tensor = ((slopes @ pulls[..., None])[..., 0] / lengths.clamp_min(TINY**10)).argmax(1)
    return nearest


def _least_squares(residual: Callable[[Tensor], Tensor], start: Tensor, over: Callable[[], bool] = never) -> Tensor:
    """Return where a sum of squares is least near `start`, by damped Gauss-Newton steps."""
    x, error, damping = start, residual(start), DAMPING
    for _ in range(STEPS):
        if over():
            break
        jacobian = torch.func.jacfwd(residual)(x).reshape(len(error), -1)
        curvature, slope = jacobian.mT @ jacobian, jacobian.mT @ error
        scale = curvature.diagonal().mean().clamp_min(TINY**10) * torch.eye(len(slope)).to(curvature)
        while damping < MOST and not over():
            step = torch.linalg.solve_ex(curvature + damping * scale, slope)[0]
            trial = x - step.reshape(x.shape)
            after = residual(trial)
            if float(after.norm()) < float(error.norm()):
                break
            damping *= MORE
        else:
            return x
        x, error, damping = trial, after, damping * LESS
        if float(error.norm()) < SOLVED:
            break
    return x
