"""How well attacks recovered the targets of a caller's own loss, beside the best guess from the other clients' targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leakscope.auditing.attack_runs import LabelReading
from leakscope.auditing.suite import TARGETS, Untested
from leakscope.core import random
from leakscope.core.tree import to
from leakscope.learning.losses import UserLoss
from leakscope.learning.target_start import begin_targets
from leakscope.learning.targets import TargetKind, Targets
from leakscope.metrics.interval import estimate_mean
from leakscope.metrics.scoring import arrange
from leakscope.play import AttackResult, Exposure

WHAT = "target recovery"


class TargetError(NamedTuple):
    """The mean absolute error of numbers that an attack recovered with its 95 % interval, and that of the others' median."""

    attack: str
    value: float
    low: float
    high: float
    n: int
    guessing: float


def read_targets(exposure: Exposure, runs: Sequence[AttackResult]) -> LabelReading | TargetError | Untested:
    """Return how well the best attack that did not know the targets recovered them.

    Of classes and labels it is the share that is right, over all places. The guess to compare with is the commonest class or label
    at each place among the other clients, or the median of their values.
    """
    truth, loss = exposure.batch.targets, exposure.client.loss
    if truth is None or not isinstance(loss, UserLoss) or loss.targets is None:
        return Untested(WHAT, "no attack searches the targets of this loss")
    searched = {run.name: run for run in runs if run.reconstruction.targets is not None and TARGETS not in run.name}
    if not searched or len(truth) < 2:
        why = "one client: a guess to compare with needs the targets of others"
        return Untested(WHAT, why if searched else "no attack that searches the targets was run")
    kind = loss.targets.kind
    if kind is TargetKind.CLASSES and truth.is_floating_point():
        truth = truth.argmax(2)  # rows of class probabilities
    exact = kind is not TargetKind.VALUES and bool((truth == truth.round()).all())
    guesses = {name: _recovered(exposure, run, loss.targets, exact=exact) for name, run in searched.items()}
    blind = torch.stack([_guess_without(truth, client, exact=exact) for client in range(len(truth))])

    def errors(guess: Tensor) -> Tensor:
        wrong = (guess != truth) if exact else (guess - truth).abs()
        return wrong.double().reshape(*truth.shape[:2], -1).mean(2)

    mask, within = exposure.batch.mask, (0.0, 1.0 if exact else float("inf"))
    estimates = {name: estimate_mean(errors(guess), mask, within=within) for name, guess in guesses.items()}
    best = min(estimates, key=lambda name: estimates[name].value)
    best_error, null = estimates[best], float(errors(blind)[mask].mean())
    if exact:
        return LabelReading(best, 1 - best_error.value, 1 - null, best_error.n, 1 - best_error.high, 1 - best_error.low)
    return TargetError(best, best_error.value, best_error.low, best_error.high, best_error.n, null)


def _recovered(exposure: Exposure, run: AttackResult, kind: Targets, *, exact: bool) -> Tensor:
    """Return the targets that an attack recovered, in the order of the truth; values are fitted to the update at its last guess."""
    targets = run.reconstruction.targets
    if kind.kind is TargetKind.VALUES:
        targets = _fitted(exposure, run)
    if targets is None:
        raise RuntimeError("an attack under a caller's own loss ends with targets")
    return arrange(kind.decided(targets) if exact else targets, run.scores.pairing)


def _fitted(exposure: Exposure, run: AttackResult) -> Tensor:
    """Return the values that explain the update best at an attack's last guess: where only directions are compared, it has none."""
    loss, scaling = exposure.knowledge.loss, exposure.knowledge.scaling
    if not isinstance(loss, UserLoss) or loss.targets is None:
        raise TypeError("values are fitted under a caller's own loss")
    rank = len(exposure.model.input_shape)
    guess, mask = to((scaling.scale(run.reconstruction.inputs, rank), exposure.batch.mask), device=exposure.device)
    keys = random.key(list(exposure.seeds), device=exposure.device)
    first = begin_targets(exposure.model, loss, exposure.observation, guess, mask, keys, lengths=True)
    middle = None if first.loss.targets is None else first.loss.targets.middle
    if not isinstance(middle, Tensor):
        raise TypeError("fitted values are a tensor")
    return middle.cpu()


def _guess_without(truth: Tensor, client: int, *, exact: bool) -> Tensor:
    """Return the guess for one client's targets (N x ...) from those of the others: the commonest or the median at each place."""
    others = torch.cat([truth[:client], truth[client + 1 :]]).flatten(0, 1)
    guess = others.mode(0).values if exact else others.median(0).values
    return guess.expand(truth.shape[1:])
