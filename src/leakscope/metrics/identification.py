"""Whether a reconstruction identifies its private example among public examples of the same class.

For a guess that depends on the private example only through its class, the private example is exchangeable with the K public
candidates. That is the null: its rank is uniform, `rank_*` is 0.5 on average and `iip_*` is 1 / (K + 1), 0.01 for 99 candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.metrics.context import Context, Features

TINY = 1e-12


def iip_pixels(truth: Tensor, guess: Tensor, context: Context) -> Tensor:
    """Return the image identifiability precision of each example: 1 if no candidate of its class is as near to the guess in pixels.

    Yin et al. 2021 (GradInversion), section 4.1, with up to 99 candidates (the first public ones of the class) and the true
    example; the mean over examples is the precision.
    """
    return (rank_pixels(truth, guess, context) == 0).to(truth.dtype)


def iip_features(truth: Tensor, guess: Tensor, context: Context) -> Tensor:
    """Return the image identifiability precision of each example in the features of the attacked network; see `iip_pixels`."""
    return (rank_features(truth, guess, context) == 0).to(truth.dtype)


def rank_pixels(truth: Tensor, guess: Tensor, context: Context) -> Tensor:
    """Return the share of candidates of its class that are as near to the guess as the true example: 0 the best, 0.5 by chance."""
    return _share_as_near(truth, guess, context, lambda _, inputs: inputs.flatten(1))


def rank_features(truth: Tensor, guess: Tensor, context: Context) -> Tensor:
    """Return the share of candidates of its class as near to the guess as the true example, in features; see `rank_pixels`."""
    return _share_as_near(truth, guess, context, context.network())


def _share_as_near(truth: Tensor, guess: Tensor, context: Context, view: Features) -> Tensor:
    """Return T x N: the share of candidates whose view is as near to the guess's as the true example's; copies of it are left out."""
    rows = []
    for trial, labels in enumerate(context.labels.tolist()):
        candidates = {label: context.of_class(label).to(truth) for label in set(labels)}
        viewed = {label: view(trial, inputs).double() for label, inputs in candidates.items()}
        true_views, guess_views = (view(trial, stack[trial]).double() for stack in (truth, guess))
        for label, x, seen, guessed in zip(labels, truth[trial], true_views, guess_views, strict=True):
            other = (candidates[label] != x).flatten(1).any(1)
            near = (viewed[label] - guessed).square().sum(1) <= (seen - guessed).square().sum()
            rows.append((near & other).sum() / other.sum().clamp_min(1))
    return torch.stack(rows).reshape(truth.shape[:2]).to(truth.dtype)


def feature_distance(truth: Tensor, guess: Tensor, context: Context) -> Tensor:
    """Return the distance of each guess from the true example in the features of the attacked network.

    `|f(x*) - f(x)| / |f(x)|` with f the input of the network's last dense layer (its output, where it ends otherwise).
    """
    features = context.network()
    rows = []
    for trial, pair in enumerate(zip(truth, guess, strict=True)):
        x, y = (features(trial, inputs).double() for inputs in pair)
        rows.append((x - y).norm(dim=-1) / x.norm(dim=-1).clamp_min(TINY))
    return torch.stack(rows).to(truth.dtype)
