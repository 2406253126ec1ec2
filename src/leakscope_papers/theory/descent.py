"""CPL's convergence theorem, and why it does not apply to gradient matching: it needs a convex function.

Theorem 1 of Wei et al. 2020 (arXiv:2004.10397, equation 1): for f convex with an L-Lipschitz gradient and x* a minimum, gradient
descent with step 1/L has

    f(x_T) - f(x*) <= 2 L |x_0 - x*|^2 / T,

a loose form of the textbook theorem (L |x_0 - x*|^2 / (4 T + 2): Drori and Teboulle 2014). The paper takes f to be the attack's
mismatch, "generally" convex because the guess can be seen as a linear network. It is not convex: the gradient of one dense layer
is a PRODUCT of the output's error and the input, and the error depends on the input too. See `linear_match` and docs/explanation/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.learning.losses import Loss

Function = Callable[[Tensor], Tensor]


def bulge(function: Function, first: Tensor, second: Tensor, share: float = 0.5) -> Tensor:
    """Return f(a x + (1 - a) y) - a f(x) - (1 - a) f(y): a value above 0 proves that f is not convex."""
    between = share * first + (1 - share) * second
    return function(between) - share * function(first) - (1 - share) * function(second)


def linear_match(weight: Tensor, bias: Tensor, target: Tensor, secret: Tensor, loss: Loss) -> Function:
    """Return the mismatch D(x) of an attack on ONE dense layer `o = W x + b` whose client holds `secret`.

    With the error `e(x) = d loss(o, t) / d o` the shared gradient is `(e x^T, e)`, and

        D(x) = |e(x) x^T - e(s) s^T|^2 + |e(x) - e(s)|^2.
    """

    def gradient(x: Tensor) -> Tensor:
        error = torch.func.grad(lambda o: loss(o, target))(weight @ x + bias)
        return torch.cat([torch.outer(error, x).flatten(), error])

    seen = gradient(secret)
    return lambda x: (gradient(x) - seen).square().sum()
