"""Resizing images in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from leakscope.core.errors import InputError

MOST_SIDE = 2048


def resize(pictures: Tensor, side: int) -> Tensor:
    """Return images `... x C x H x W` in [0, 1] as `... x C x side x side`: bilinear and antialiased, as Pillow's BILINEAR."""
    if not 1 <= side <= MOST_SIDE:
        raise InputError(f"side of a picture must be in 1 .. {MOST_SIDE}, got {side}")
    if pictures.ndim < 3:
        raise InputError(f"pictures to resize must be ... x C x H x W, got shape {tuple(pictures.shape)}")
    if pictures.shape[-2:] == (side, side):
        return pictures
    if not pictures.numel():
        return pictures.new_zeros(*pictures.shape[:-2], side, side)
    stack = pictures.reshape(-1, *pictures.shape[-3:])
    resized = F.interpolate(stack, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    return resized.clamp(0, 1).reshape(*pictures.shape[:-2], side, side)
