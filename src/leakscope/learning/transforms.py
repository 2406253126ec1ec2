"""The operations of a transformation policy as differentiable functions on images in [0, 1], for attackers who know the policy.

A client works on bytes and rounds (`leakscope.defences.on_data`); these do not, and differ from it by about a grey level.
Gradients of operations without a useful one:

| kind | gradient |
|---|---|
| posterize | that of the identity (straight-through) |
| equalize | that of its table, held fixed and interpolated linearly between levels |
| solarize, autocontrast, the clamps | exact where defined |

`strength` is the sign drawn for an image, -1 or 1, or a number between for an attacker who learns it: every signed operation is
continuous in it, and at -1 and 1 it equals the client's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.learning.resample import Places, gather, rotated, sheared_down

PolicyFacts = tuple[tuple[str, float], ...]  # kind and magnitude of each operation, in order
LUMINANCE = (0.299, 0.587, 0.114)
GREY = 128 / 255
LEVELS = 256
BLENDS = ("brightness", "contrast", "color", "sharpness")
SIGNED = frozenset({*BLENDS, "shear_y", "translate_x", "translate_y"})  # operations with a random sign


def transform(pictures: Tensor, steps: PolicyFacts, strengths: Tensor) -> Tensor:
    """Return images (N x C x H x W in [0, 1]) after all steps; `strengths` is N x at least the number of steps."""
    for number, (kind, magnitude) in enumerate(steps):
        pictures = transform_once(pictures, kind, magnitude, strengths[:, number])
    return pictures


def transform_once(pictures: Tensor, kind: str, magnitude: float, strength: Tensor) -> Tensor:
    """Return images after one operation; `strength` is one number per image, used if the operation has a sign."""
    strength = strength.to(pictures.dtype)
    if kind in BLENDS:
        return _blended(pictures, kind, 1 + magnitude * strength)
    if kind in ("translate_x", "translate_y"):
        return _moved(pictures, magnitude, strength, across=kind == "translate_x")
    if kind == "shear_y":
        return sheared_down(pictures, magnitude * strength).clamp(0, 1)
    if kind == "rotate":
        return rotated(pictures, magnitude, GREY)
    if kind == "invert":
        return 1 - pictures
    if kind == "solarize":
        return torch.where(pictures * 255 < magnitude, pictures, 1 - pictures)
    if kind == "posterize":
        level = float(2 ** (8 - int(magnitude)))
        coarse = ((pictures * 255).round() / level).floor() * level / 255
        return pictures + (coarse - pictures).detach()
    if kind == "autocontrast":
        return _stretched(pictures)
    if kind == "equalize":
        return _equalized(pictures)
    raise InputError(f"unknown operation {kind!r}")


def _blended(pictures: Tensor, kind: str, factor: Tensor) -> Tensor:
    """Return `clamp(plain + factor (x - plain))`; plain is black, the mean grey, the grey image or the smoothed image."""
    if kind == "brightness":
        plain = torch.zeros_like(pictures)
    elif kind == "contrast":
        plain = luminance(pictures).mean((-3, -2, -1), keepdim=True)
    elif kind == "color":
        plain = luminance(pictures)
    else:
        plain = _smoothed(pictures)
    return (plain + factor[:, None, None, None] * (pictures - plain)).clamp(0, 1)


def luminance(pictures: Tensor) -> Tensor:
    """Return the grey image, N x 1 x H x W."""
    if pictures.shape[-3] == 1:
        return pictures
    red, green, blue = pictures.unbind(-3)
    return (LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue).unsqueeze(-3)


def _smoothed(pictures: Tensor) -> Tensor:
    height, width = pictures.shape[-2:]
    if min(height, width) < 3:
        return pictures
    nine = [pictures[..., i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
    inner = (torch.stack(nine).sum(0) + 4 * pictures[..., 1:-1, 1:-1]) / 13
    middle = torch.cat([pictures[..., 1:-1, :1], inner, pictures[..., 1:-1, -1:]], dim=-1)
    return torch.cat([pictures[..., :1, :], middle, pictures[..., -1:, :]], dim=-2)


def _moved(pictures: Tensor, magnitude: float, strength: Tensor, *, across: bool) -> Tensor:
    """Return images moved as by Pillow (`floor(t + 1/2)` pixels, black fill) at strength -1 and 1, and linearly interpolated between."""
    height, width = pictures.shape[-2:]
    way = magnitude * (width if across else height)
    ends = [math.floor(sign * way + 0.5) for sign in (-1, 1)]
    offset = (ends[0] + ends[1]) / 2 + strength * (ends[1] - ends[0]) / 2
    whole = offset.detach().floor()
    part = (offset - whole)[:, None, None, None]
    first, second = (_by_pixels(pictures, whole.long() + step, across=across) for step in (0, 1))
    return torch.lerp(first, second, part)


def _by_pixels(pictures: Tensor, offset: Tensor, *, across: bool) -> Tensor:
    height, width = pictures.shape[-2:]
    rows = torch.arange(height, device=pictures.device)[None, :, None]
    columns = torch.arange(width, device=pictures.device)[None, None, :]
    shift = offset[:, None, None]
    rows, columns = (rows, columns + shift) if across else (rows + shift, columns)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    shape = inside.shape
    return gather(pictures, Places(rows.expand(shape), columns.expand(shape), inside), 0)


def _stretched(pictures: Tensor) -> Tensor:
    low, high = pictures.amin((-2, -1), keepdim=True), pictures.amax((-2, -1), keepdim=True)
    span = high - low
    return torch.where(span > 0, (pictures - low) / span.clamp_min(1 / 255), pictures)


def _equalized(pictures: Tensor) -> Tensor:
    place = pictures.flatten(-2) * 255
    level = place.detach().round().clamp(0, LEVELS - 1).long()
    counts = torch.zeros_like(level[..., :1]).expand(*level.shape[:-1], LEVELS)
    table = equalizing(counts.scatter_add(-1, level, torch.ones_like(level))).to(pictures.dtype)
    low = place.detach().floor().clamp(0, LEVELS - 2).long()
    first, second = table.gather(-1, low), table.gather(-1, low + 1)
    return ((first + (place - low) * (second - first)) / 255).reshape(pictures.shape)


def equalizing(counts: Tensor) -> Tensor:
    """Return the table that equalises a histogram (... x 256): `(step / 2 + pixels below the level) / step`, at most 255.

    `step` is 1/255 of the pixels below the highest level; where it is 0 the table is the identity.
    """
    level = torch.arange(LEVELS, device=counts.device)
    highest = torch.where(counts > 0, level, -1).amax(-1, keepdim=True)
    step = (counts.sum(-1, keepdim=True) - counts.gather(-1, highest)) // 255
    below = counts.cumsum(-1) - counts
    table = ((step // 2 + below) // step.clamp_min(1)).clamp_max(255)
    return torch.where(step > 0, table, level)
