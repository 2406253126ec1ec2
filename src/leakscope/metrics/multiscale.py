"""MS-SSIM: structural similarity at several scales of an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from leakscope.core.types import IMAGE_RANK
from leakscope.metrics.image import C1, C2, WINDOW, item_dimensions, window_moments

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def ms_ssim(truth: Tensor, guess: Tensor) -> Tensor:
    """Return the multi-scale structural similarity of each image, the mean over its channels.

    With s_k the mean SSIM of a channel at scale k, c_k the mean of its second factor (contrast and structure) and w the weights,

        max(s_M, 0)^w_M  prod_{k < M} max(c_k, 0)^w_k.

    Wang et al. 2003: five scales, each the previous one averaged over 2 x 2 pixels (an odd last row or column is dropped). Agrees
    with `pytorch_msssim.ms_ssim(data_range=1)` for sides that are multiples of 16. Five scales need 176 pixels; a smaller image
    uses the scales at which an 11 x 11 window fits, with weights of the same sum, and one under 22 pixels has its SSIM to the
    power 1.0001, with negative values set to 0. Windows are those of `ssim`.
    """
    item_dimensions(truth, guess, IMAGE_RANK)
    scales = min(len(WEIGHTS), 1 + int(math.log2(max(1, min(truth.shape[-2:]) // WINDOW))))
    share = sum(WEIGHTS[:scales]) / sum(WEIGHTS)  # the published weights sum to 1.0001
    x, y = truth.double(), guess.double()
    product = torch.ones_like(x[..., 0, 0])
    for scale, weight in enumerate(WEIGHTS[:scales], start=1):
        mx, my, spread, shared = window_moments(x, y)
        factor = (2 * shared + C2) / (spread + C2)
        if scale == scales:
            factor = factor * (2 * mx * my + C1) / (mx * mx + my * my + C1)
        product = product * factor.mean((-2, -1)).relu() ** (weight / share)
        x, y = (avg_pool2d(z.flatten(0, -4), 2).unflatten(0, z.shape[:-3]) if scale < scales else z for z in (x, y))
    return product.mean(-1).to(truth.dtype)
