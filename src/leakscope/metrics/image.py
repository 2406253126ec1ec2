"""Metrics of a reconstruction, one number per item: pure functions of two stacks of equal shape.

The last dimensions of a stack are one item: images are `... x C x H x W` in [0, 1], tables `N x F`. `leakscope.metrics.scoring`
clamps and pairs before it calls these functions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakscope.core.types import IMAGE_RANK

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def mse(truth: Tensor, guess: Tensor, *, rank: int | None = None) -> Tensor:
    """Return the mean squared difference of each item.

    `mean_i (x_i - x*_i)^2` over the values of an item; CPL (section 3.3) calls it a root but prints it without one, as we do.
    `rank` is the number of dimensions of one item; default: 3 (an image) from four dimensions on, 1 (a table row) for two.

    >>> mse(torch.zeros(2, 4), torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0]]))
    tensor([0.0000, 0.2500])
    """
    return (truth - guess).square().mean(item_dimensions(truth, guess, rank))


def psnr(truth: Tensor, guess: Tensor, *, rank: int | None = None) -> Tensor:
    """Return the PSNR of each item in dB, `10 log10(1 / mse)`; infinite for identical items: cap it before taking means (`summarise`)."""
    return -10 * mse(truth, guess, rank=rank).log10()


def rmse_relative(truth: Tensor, guess: Tensor, *, rank: int | None = None) -> Tensor:
    """Return the length of each item's error over the length of the true item.

    `||x* - x|| / ||x||`, the left side of the bound of Fan et al. 2020 (arXiv:2006.11601, eq. 3), which calls it rMSE. For an
    all-zero truth it is 0 if the guess is all zero too, else infinity.
    """
    item = item_dimensions(truth, guess, rank)
    error, length = (truth - guess).square().sum(item).sqrt(), truth.square().sum(item).sqrt()
    return torch.where(error == 0, error, error / length)


def ssim(truth: Tensor, guess: Tensor) -> Tensor:
    """Return the structural similarity of each image, the mean over its windows and channels.

    With Gaussian-weighted means m, variances v and covariance c of a window,

        (2 m_x m_y + C1) (2 c_xy + C2) / ((m_x^2 + m_y^2 + C1) (v_x + v_y + C2)),   C1 = 0.01^2, C2 = 0.03^2.

    Wang et al. 2004: 11 x 11 window, sigma 1.5, population covariance, only windows fully inside the image. Agrees with
    `skimage.metrics.structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0)`. Images
    smaller than 11 use the largest odd window that fits (skimage refuses them). Computed in float64: a variance as a difference
    of squares loses too much precision in float32 relative to C2.
    """
    mx, my, spread, shared = window_moments(truth, guess)
    likeness = (2 * mx * my + C1) * (2 * shared + C2) / ((mx * mx + my * my + C1) * (spread + C2))
    return likeness.mean((-3, -2, -1)).to(truth.dtype)


def window_moments(truth: Tensor, guess: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `m_x`, `m_y`, `v_x + v_y` and `c_xy` of every window of two stacks of images, in float64."""
    item_dimensions(truth, guess, IMAGE_RANK)
    height, width = truth.shape[-2:]
    side = min(WINDOW, height - 1 + height % 2, width - 1 + width % 2)
    down, across = _windows(height, side, truth.device), _windows(width, side, truth.device)

    def local_mean(z: Tensor) -> Tensor:
        return (z @ across.mT).mT @ down.mT

    x, y = truth.double(), guess.double()
    mx, my = local_mean(x), local_mean(y)
    spread = local_mean(x * x) - mx * mx + local_mean(y * y) - my * my
    return mx, my, spread, local_mean(x * y) - mx * my


def _windows(length: int, side: int, device: torch.device) -> Tensor:
    """Return the matrix whose rows are the Gaussian window at each position where it fits in `length`."""
    offset = torch.arange(side, dtype=torch.float64, device=device) - (side - 1) / 2
    weight = torch.exp(-0.5 * (offset / SIGMA) ** 2)
    weight = weight / weight.sum()
    places = length - side + 1
    return torch.stack([torch.nn.functional.pad(weight, (i, places - 1 - i)) for i in range(places)])


def item_dimensions(truth: Tensor, guess: Tensor, rank: int | None) -> tuple[int, ...]:
    """Return the dimensions of one item, after checking that the two stacks can be compared."""
    if truth.shape != guess.shape:
        raise ValueError(f"truth and guess must have one shape, got {tuple(truth.shape)} and {tuple(guess.shape)}")
    if not truth.is_floating_point() or not guess.is_floating_point():
        raise ValueError(f"truth and guess must be floating point in [0, 1], got {truth.dtype} and {guess.dtype}")
    if rank is None:
        rank = {2: 1, 3: 0}.get(truth.ndim, IMAGE_RANK)
    if not 1 <= rank < truth.ndim or math.prod(truth.shape[-rank:]) == 0:
        raise ValueError(
            f"a stack is N x C x H x W or N x F (of another kind: say `rank`, the dimensions of one item), "
            f"got shape {tuple(truth.shape)}"
        )
    return tuple(range(-rank, 0))
