"""RDLV: what a reconstruction adds to the best guess without an update, as one number."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.metrics.context import Context
from leakscope.metrics.image import ssim

FLOOR = 0.01


def rdlv(truth: Tensor, guess: Tensor, context: Context) -> Tensor:
    """Return the relative data leakage value of each image: the gain in SSIM over the mean public image of its class.

        (ssim(x*, x) - ssim(p, x)) / ssim(p, x)

    0 or less: the update added nothing to the class mean p. Hatamizadeh et al. 2023 (arXiv:2202.06924), which compares with one
    prior image for all. Where ssim(p, x) is under 0.01, the divisor is 0.01.
    """
    classes = context.labels.unique().tolist()
    means = {label: context.of_class(label, None).to(truth).mean(0) for label in classes}
    prior = torch.stack([torch.stack([means[label] for label in row]) for row in context.labels.tolist()])
    without = ssim(truth, prior)
    return (ssim(truth, guess) - without) / without.clamp_min(FLOOR)
