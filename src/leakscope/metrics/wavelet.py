"""CW-SSIM: similarity of complex wavelet coefficients, which tolerates small shifts, turns and changes of size."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from leakscope.core.types import IMAGE_RANK
from leakscope.metrics.image import item_dimensions

LEVELS, ORIENTATIONS, WINDOW = 4, 8, 7
K = 1e-4  # noise of 1 % of the range in a flat region counts as equal


def cw_ssim(truth: Tensor, guess: Tensor) -> Tensor:
    """Return the complex wavelet structural similarity of each image, the mean over bands, windows and channels.

    With c_x and c_y the coefficients of a band in a window,

        (2 |mean c_x conj(c_y)| + K) / (mean |c_x|^2 + mean |c_y|^2 + K).

    A small shift turns the phase of all coefficients of a window alike, which the absolute value ignores. Sampat et al. 2009,
    eq. 7. Our reading: the complex steerable pyramid of Portilla and Simoncelli 2000 (8 orientations, up to 4 levels, as many as
    have a wavelength within the image), every band at full resolution and with equal weight, 7 x 7 windows inside the image.
    No band holds the mean brightness, so CW-SSIM does not see it: two flat images score 1. Computed in float64.
    """
    item_dimensions(truth, guess, IMAGE_RANK)
    height, width = truth.shape[-2:]
    window = min(WINDOW, height - 1 + height % 2, width - 1 + width % 2)
    sides = (height - window + 1, width - window + 1)
    filters = band_filters(height, width, truth.device)
    x, y = torch.fft.fft2(truth.double()), torch.fft.fft2(guess.double())

    def local_mean(z: Tensor) -> Tensor:
        return avg_pool2d(z.reshape(-1, *z.shape[-3:]), window, stride=1).reshape(*z.shape[:-2], *sides)

    total = torch.zeros_like(truth[..., 0, 0, 0], dtype=torch.float64)
    for band in filters:
        a, b = torch.fft.ifft2(x * band), torch.fft.ifft2(y * band)
        product = a * b.conj()
        shared = torch.hypot(local_mean(product.real), local_mean(product.imag))
        energy = local_mean(a.real**2 + a.imag**2 + b.real**2 + b.imag**2)
        total = total + ((2 * shared + K) / (energy + K)).mean((-3, -2, -1))
    return (total / len(filters)).to(truth.dtype)


def band_filters(height: int, width: int, device: torch.device) -> list[Tensor]:
    """Return the frequency response of each band (height x width): level by level, orientation by orientation.

    At radius r and angle t, level l has `cos(pi/2 log2(r 2^l / pi))` within an octave of its peak `pi / 2^l` and 0 elsewhere,
    times `a cos(t - pi k / 8)^7` in the half plane around orientation k; the squares of `a cos^7` sum to 1 over both half planes.
    """
    down, across = (2 * math.pi * torch.fft.fftfreq(n, dtype=torch.float64, device=device) for n in (height, width))
    radius = torch.hypot(down[:, None], across[None])
    angle = torch.atan2(down[:, None], across[None])
    order = ORIENTATIONS - 1
    strength = 2**order * math.factorial(order) / math.sqrt(ORIENTATIONS * math.factorial(2 * order))
    filters = []
    for level in range(1, max(1, min(LEVELS, int(math.log2(min(height, width))) - 1)) + 1):
        octave = torch.log2(radius.clamp_min(1e-12) * 2**level / math.pi)
        radial = torch.cos(math.pi / 2 * octave.clamp(-1, 1))
        for k in range(ORIENTATIONS):
            aligned = torch.cos(angle - math.pi * k / ORIENTATIONS)
            filters.append(radial * strength * aligned.clamp_min(0) ** order)
    return filters
