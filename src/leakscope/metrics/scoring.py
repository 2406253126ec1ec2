"""The scores of many trials against the private data, all under the same pairing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError, first_line
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.registry import lookup
from leakscope.core.short_repr import short_repr
from leakscope.core.types import IMAGE_RANK
from leakscope.metrics.catalogue import METRICS, Metric
from leakscope.metrics.context import Context
from leakscope.metrics.image import mse, psnr, ssim
from leakscope.metrics.labels import label_correct, label_overlap

MID_GREY = 0.5
SLACK = 1e-6
_SSIM_CHUNK = 2**22


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of T trials of N samples; T x N each, except `label_overlap` (T).

    Sample i of a trial is scored against guess `pairing[i]`. `ssim` is NaN for non-images. Label scores are None if the attack
    guessed no labels. `scored` is False for padding, whose values are NaN. `finite` is False if the guess held a NaN or infinity.
    """

    mse: Tensor
    psnr: Tensor
    ssim: Tensor
    label_correct: Tensor | None
    label_overlap: Tensor | None
    pairing: Tensor
    scored: Tensor
    finite: Tensor

    __repr__ = short_repr

    @property
    def trials(self) -> int:
        """Return T."""
        return self.mse.shape[0]


def score(
    truth_inputs: Tensor,
    truth_labels: Tensor,
    guess_inputs: Tensor,
    guess_labels: Tensor | None,
    *,
    mask: Tensor | None = None,
    within: float | None = None,
) -> Scores:
    """Return the scores of guesses for the samples of T trials: inputs `T x N x ...` in [0, 1], labels `T x N`.

    Guesses are cleaned (`clean`) and paired with the truth (`match`). `mask` (T x N) marks real samples.
    """
    scored = torch.ones_like(truth_labels, dtype=torch.bool) if mask is None else mask
    _check(truth_inputs, truth_labels, guess_inputs, guess_labels, scored)
    shown = clean(guess_inputs)
    pairing = match(truth_inputs, shown, scored, within)
    shown = arrange(shown, pairing)
    rank = truth_inputs.ndim - 2
    error = mse(truth_inputs, shown, rank=rank)
    likeness = _ssim(truth_inputs, shown) if rank == IMAGE_RANK else torch.full_like(error, torch.nan)
    return Scores(
        mse=error.where(scored, torch.nan),
        psnr=psnr(truth_inputs, shown, rank=rank).where(scored, torch.nan),
        ssim=likeness.where(scored, torch.nan),
        label_correct=None if guess_labels is None else label_correct(truth_labels, guess_labels, pairing) & scored,
        label_overlap=None if guess_labels is None else label_overlap(truth_labels, guess_labels, scored),
        pairing=pairing,
        scored=scored,
        finite=guess_inputs.isfinite().flatten(2).all(-1).gather(1, pairing),
    )


def trial_means(
    names: Sequence[str], truth: Tensor, guess: Tensor, scores: Scores, context: Context | None = None
) -> dict[str, Tensor]:
    """Return the mean of each named metric over the scored examples of every trial (T), under the pairing of `scores`.

    Metrics that need a context are left out without one, and those that need its network where it has none.
    """
    shown, scored = arrange(clean(guess), scores.pairing), scores.scored
    means = {}
    for name in names:
        metric = lookup(METRICS, name, "metric")
        try:
            if isinstance(metric, Metric):
                values = metric.function(truth.flatten(0, 1), shown.flatten(0, 1)).double().reshape(scored.shape)
            elif context is None or (metric.network and context.features is None):
                continue
            else:
                values = metric.function(truth, shown, context).double()
        except Exception as error:  # a user's function may raise anything
            raise InputError(f"metric {name!r} must give one number per example: {first_line(error)}") from None
        means[name] = values.where(scored, 0.0).sum(1) / scored.sum(1)
    return means


def clean(guess: Tensor) -> Tensor:
    """Return guesses clamped to [0, 1], with mid-grey for NaN.

    An attacker knows the valid range and would clamp too. A diverged guess thus scores as a bad image and does not turn a mean
    into NaN; it remains visible in `Scores.finite` and in the outcome.
    """
    return torch.nan_to_num(guess, nan=MID_GREY, posinf=1.0, neginf=0.0).clamp(0, 1)


def match(truth: Tensor, guess: Tensor, scored: Tensor, within: float | None = None) -> Tensor:
    """Return for each true sample the index of its guess (T x N), by the smallest total MSE in each trial; padding keeps its place.

    With `within`, as many pairs as possible have at most this MSE, and the total decides between equal numbers: otherwise one bad
    guess can displace an exact one.
    """
    pairing = torch.arange(truth.shape[1], device=truth.device).expand(truth.shape[:2]).clone()
    if truth.shape[1] == 1:
        return pairing
    for trial in range(truth.shape[0]):
        real = scored[trial].nonzero().squeeze(1)
        cost = squared_distances(truth[trial, real], guess[trial, real])
        if within is not None:  # an MSE is at most 1, so one more pair outweighs any total
            cost = cost + (len(real) + 1) * (cost > within)
        pairing[trial, real] = real[pair(cost).to(real.device)]
    return pairing


def arrange(guess: Tensor, pairing: Tensor) -> Tensor:
    """Return guesses (T x N x ...) in the order of the samples they were paired with."""
    return guess[torch.arange(guess.shape[0], device=guess.device)[:, None], pairing]


def _ssim(truth: Tensor, guess: Tensor) -> Tensor:
    """Return `ssim` in chunks, so that its float64 temporaries stay small."""
    part = max(1, _SSIM_CHUNK // truth[0].numel())
    return torch.cat([ssim(x, y) for x, y in zip(torch.split(truth, part), torch.split(guess, part), strict=True)])


def _check(inputs: Tensor, labels: Tensor, guess: Tensor, guess_labels: Tensor | None, scored: Tensor) -> None:
    if inputs.ndim < 3 or labels.shape != inputs.shape[:2] or 0 in inputs.shape:
        raise InputError(
            f"score needs truth_inputs T x N x ... and truth_labels T x N, none empty, "
            f"got {tuple(inputs.shape)} and {tuple(labels.shape)}"
        )
    if guess.shape != inputs.shape:
        raise InputError(f"guess_inputs must have the truth's shape {tuple(inputs.shape)}, got {tuple(guess.shape)}")
    if guess_labels is not None and guess_labels.shape != labels.shape:
        raise InputError(f"guess_labels must be T x N = {tuple(labels.shape)}, got {tuple(guess_labels.shape)}")
    if scored.shape != labels.shape or not bool(scored.any(1).all()):
        raise InputError(f"mask must be T x N = {tuple(labels.shape)} and keep a sample of every trial")
    seen = inputs[scored]
    if not bool(((seen >= -SLACK) & (seen <= 1 + SLACK)).all()):
        raise InputError(
            f"truth_inputs must be finite and lie in [0, 1] (before the network's scaling), "
            f"got values in [{float(seen.min()):.4g}, {float(seen.max()):.4g}]"
        )
