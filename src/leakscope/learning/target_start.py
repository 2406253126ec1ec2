"""Where the search of targets begins: those that explain the update best at the first guess of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import TINY, Tree, lift, norm, rows, scale, squared_norm, subtract
from leakscope.core.types import Observation, Round, Shares, direction
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import UserLoss
from leakscope.learning.targets import TargetKind, Targets

STEPS = 4  # of the least-squares fit; each costs about an evaluation of the attack
FAR = 100.0  # times the fitted distance from the output
NEAR = 0.1  # root mean square of the steps by which a derivative is taken


class TargetStart(NamedTuple):
    """A loss that reads the free numbers of its targets, and these numbers (T x N x ...) or, if they are not searched, the targets."""

    loss: UserLoss
    free: Tensor | None
    known: Tensor | None


def begin_targets(
    model: Model,
    loss: UserLoss,
    observation: Observation,
    guess: Tensor,
    present: Tensor | None,  # which examples of each client count (T x N); None: all
    keys: Tensor,
    *,
    lengths: bool,  # whether the attack compares the lengths of updates
) -> TargetStart:
    """Return the first targets of T trials, fitted to the update at the first guess.

    A single label is read off the update: it is not searched. Nor is a single value where only directions are compared: there the
    side of the output on which it lies is all that matters, and it is set so far on that side that no guess crosses it.
    """
    if loss.targets is None:
        raise InputError(f"its targets cannot be searched: {loss.reason}")
    own: Targets = loss.targets
    if missing := sorted(set(model.parameters) - set(observation.rounds[0].before)):
        raise InputError(f"its targets cannot be searched: {', '.join(missing)} stay at the client")
    counted = torch.ones(guess.shape[:2], dtype=torch.bool, device=guess.device) if present is None else present

    def one(seen: Round, guess: Tensor, present: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, _ = model.apply(seen.before, seen.buffers, guess, key)

        def update(targets: Tensor) -> Tree:
            gradient = loss_and_gradient(model, loss, seen.before, seen.buffers, guess, targets, present, key)[0]
            return {name: gradient[name] for name in seen.sent}

        sent, blank = direction(seen, observation.shares), own.before_fit(output)
        targets = fit_targets(update, sent, blank, lengths=observation.shares is Shares.GRADIENT)
        return own.free(targets), targets, targets - blank

    free, middle, offset = lift(one)(observation.rounds[0], guess, counted, keys)
    fitted = replace(own, middle=middle, spread=rows(offset).square().mean(1).sqrt().clamp_min(TINY))
    loss = replace(loss, targets=fitted)
    if free[0].numel() > 1 or (own.kind is TargetKind.VALUES and lengths):
        return TargetStart(loss, free, None)
    if own.kind is TargetKind.VALUES:
        return TargetStart(loss, None, middle + FAR * offset)
    return TargetStart(loss, None, fitted.decided(lift(lambda own, u: own.of(u))(fitted, free)))


def fit_targets(update: Callable[[Tensor], Tree], observed: Tree, targets: Tensor, *, lengths: bool) -> Tensor:
    """Return the targets of ONE trial whose update is closest to the observed one, at fixed inputs.

    Least squares by conjugate gradients on `update(t) = update(t0) + J (t - t0)`: exact for (binary) cross entropy and squared
    error, whose gradients are affine in the target; for others the first step of Newton's method. Without `lengths` the observed
    update is compared at the length of the simulated one.
    """
    start, pull = torch.func.vjp(update, targets)[:2]

    def along(step: Tensor) -> Tree:
        length = (
            step.square().mean().sqrt().clamp_min(TINY) / NEAR
        )  # a short step of a large target would drown in rounding
        return scale(subtract(update(targets + step / length), start), length)

    if not lengths:
        longer = torch.maximum(norm(start), norm(along(torch.ones_like(targets))))
        observed = scale(observed, longer / norm(observed).clamp_min(TINY))
    unit = norm(observed).clamp_min(TINY)
    left = scale(subtract(observed, start), 1 / unit)
    descent: Tensor = pull(left)[0]
    step, fitted, size = descent, torch.zeros_like(targets), descent.square().sum()
    for _ in range(STEPS):
        moved = along(step)
        rate = size / squared_norm(moved).clamp_min(TINY)
        fitted = fitted + rate * step
        left = subtract(left, scale(moved, rate))
        descent = pull(left)[0]
        size, last = descent.square().sum(), size
        step = descent + size / last.clamp_min(TINY) * step
    return targets + unit * fitted
