"""The image MSE along the snapshots of attacks."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.errors import InputError

BYTE = 255


def image_curve(truth: Tensor, snapshots: Tensor, pairing: Tensor | None = None) -> Tensor:
    """Return the image MSE of each snapshot of ONE trial, averaged over its samples: S values from S x N x ....

    `truth` is N x ... in [0, 1]. Stored snapshots are bytes, too coarse for small changes. `pairing` (N) is the final pairing of
    guesses and samples, used for all snapshots. NaN for a snapshot that was not reached.
    """
    shown = snapshots.double() / BYTE if snapshots.dtype == torch.uint8 else snapshots.double().clamp(0, 1)
    if shown.ndim < 2 or shown.shape[1:] != truth.shape:
        raise InputError(f"snapshots must be S x {tuple(truth.shape)}, got {tuple(snapshots.shape)}")
    shown = shown if pairing is None else shown[:, pairing]
    return (shown - truth.double()).square().flatten(1).mean(1)


def image_curves(truth: Tensor, snapshots: Tensor, pairing: Tensor, scored: Tensor) -> Tensor:
    """Return `image_curve` of T trials over the samples that are `scored` (T x N): T x S from T x S x N x ..., paired by T x N."""
    pairs = zip(truth, snapshots, pairing, scored, strict=True)
    return torch.stack([image_curve(private[real], shots[:, order[real]]) for private, shots, order, real in pairs])
