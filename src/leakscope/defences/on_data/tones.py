"""Colour operations on N x C x H x W uint8 images, byte-identical to Pillow's.

Pillow blends in single precision and truncates; its lookup tables use double precision or integers. The functions here do the
same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.learning.transforms import LEVELS, equalizing

LUMINANCE = (19595, 38470, 7471)  # 0.299, 0.587, 0.114 in 16 bits


def luminance(pictures: Tensor) -> Tensor:
    """Return the grey image, N x 1 x H x W: `(19595 R + 38470 G + 7471 B + 2^15) / 2^16`, truncated."""
    if pictures.shape[-3] == 1:
        return pictures
    red, green, blue = pictures.to(torch.int32).unbind(-3)
    mixed = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    return ((mixed + 0x8000) >> 16).to(torch.uint8).unsqueeze(-3)


def blend(plain: Tensor, pictures: Tensor, factor: Tensor) -> Tensor:
    """Return `plain + factor (pictures - plain)` clamped to bytes, with one factor an image; a factor above 1 extrapolates."""
    low, high = plain.to(torch.float32), pictures.to(torch.float32)
    step = factor.to(torch.float32)[:, None, None, None] * (high - low)
    return (low + step).clamp(0, 255).to(torch.uint8)


def brightness(pictures: Tensor, factor: Tensor) -> Tensor:
    """Return the blend with black."""
    return blend(torch.zeros_like(pictures), pictures, factor)


def contrast(pictures: Tensor, factor: Tensor) -> Tensor:
    """Return the blend with the image's mean grey, rounded."""
    grey = luminance(pictures).to(torch.float64).mean((-3, -2, -1), keepdim=True)
    return blend((grey + 0.5).floor().expand(pictures.shape), pictures, factor)


def color(pictures: Tensor, factor: Tensor) -> Tensor:
    """Return the blend with the grey image; a grey image is returned unchanged."""
    if pictures.shape[-3] == 1:
        return pictures
    return blend(luminance(pictures).expand(pictures.shape), pictures, factor)


def sharpness(pictures: Tensor, factor: Tensor) -> Tensor:
    """Return the blend with the smoothed image."""
    return blend(smoothed(pictures), pictures, factor)


def smoothed(pictures: Tensor) -> Tensor:
    """Return the 3 x 3 mean with weight 5 on the centre, rounded; border pixels are unchanged."""
    if min(pictures.shape[-2:]) < 3:
        return pictures
    wide = pictures.to(torch.int32)
    height, width = wide.shape[-2:]
    total = sum(wide[..., i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3))
    inner = (2 * (total + 4 * wide[..., 1:-1, 1:-1]) + 13) // 26
    smooth = pictures.clone()
    smooth[..., 1:-1, 1:-1] = inner.to(torch.uint8)
    return smooth


def invert(pictures: Tensor) -> Tensor:
    """Return 255 minus every byte."""
    return 255 - pictures


def solarize(pictures: Tensor, threshold: float) -> Tensor:
    """Return the image with bytes of at least `threshold` inverted."""
    return torch.where(pictures.to(torch.float64) < threshold, pictures, 255 - pictures)


def posterize(pictures: Tensor, bits: int) -> Tensor:
    """Return the highest `bits` bits of every byte."""
    high_bits = LEVELS - (1 << (8 - bits))
    return pictures & high_bits


def autocontrast(pictures: Tensor) -> Tensor:
    """Return each channel stretched so that its range becomes 0 to 255; a constant channel is unchanged."""
    low = pictures.amin((-2, -1), keepdim=True).to(torch.float64)
    high = pictures.amax((-2, -1), keepdim=True).to(torch.float64)
    span = (high - low).clamp_min(1)
    scale = torch.full_like(span, 255.0) / span  # a number divided by a tensor would use the reciprocal
    stretched = (pictures.to(torch.float64) * scale + -low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, pictures)


def equalize(pictures: Tensor) -> Tensor:
    """Return each channel after histogram equalisation."""
    flat = pictures.flatten(-2).to(torch.int64)
    counts = flat.new_zeros(*flat.shape[:-1], LEVELS).scatter_add(-1, flat, torch.ones_like(flat))
    return equalizing(counts).gather(-1, flat).reshape(pictures.shape).to(torch.uint8)
