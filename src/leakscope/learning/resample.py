"""Translation, rotation and shear of images with Pillow's arithmetic, as source positions of each pixel.

Used by the client and by an informed attacker, who differentiates: all three are linear in the image. Images are N x C x H x W of
any dtype; numbers that differ between images are tensors of N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FIXED = 65536  # Pillow rotates in fixed point with 16 fractional bits


@dataclass(frozen=True, slots=True)
class Places:
    """The source row and column of each pixel (N x H x W), and whether it is inside the image."""

    rows: Tensor
    columns: Tensor
    inside: Tensor


def gather(pictures: Tensor, places: Places, fill: float) -> Tensor:
    """Return the images with every pixel taken from its source; `fill` outside."""
    height, width = pictures.shape[-2:]
    flat = places.rows.clamp(0, height - 1) * width + places.columns.clamp(0, width - 1)
    index = flat.flatten(-2).unsqueeze(-2).expand(*pictures.shape[:-2], height * width)
    taken = pictures.flatten(-2).gather(-1, index).reshape(pictures.shape)
    return torch.where(places.inside.unsqueeze(-3), taken, torch.as_tensor(fill, dtype=pictures.dtype).to(taken.device))


def _axes(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centres of rows (H x 1) and columns (1 x W) in double precision, as in Pillow."""
    height, width = pictures.shape[-2:]
    rows = torch.arange(height, dtype=torch.float64, device=pictures.device) + 0.5
    columns = torch.arange(width, dtype=torch.float64, device=pictures.device) + 0.5
    return rows[:, None], columns[None, :]


def _each(value: Tensor) -> Tensor:
    """Return one number per image, shaped to broadcast over N x H x W."""
    return value.to(torch.float64)[:, None, None]


def translated(pictures: Tensor, across: Tensor, down: Tensor, fill: float = 0) -> Tensor:
    """Return images whose pixel (x, y) is that of (x + across, y + down), nearest pixel; offsets in pixels, one per image.

    A positive offset moves the image left or up. Pillow reads at `floor(x + 1/2 + across)`.
    """
    rows, columns = _axes(pictures)
    places = Places(*_nearest(rows + _each(down), columns + _each(across), pictures.shape[-2:]))
    return gather(pictures, places, fill)


def _nearest(rows: Tensor, columns: Tensor, sides: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    inside = (rows >= 0) & (rows < sides[0]) & (columns >= 0) & (columns < sides[1])
    shape = inside.shape
    return rows.floor().long().expand(shape), columns.floor().long().expand(shape), inside


def rotated(pictures: Tensor, degrees: float, fill: float = 0) -> Tensor:
    """Return images rotated counter-clockwise about their centre, nearest pixel, in Pillow's 16.16 fixed point."""
    height, width = pictures.shape[-2:]
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x0 = cos * -width / 2 + sin * -height / 2 + width / 2
    y0 = -sin * -width / 2 + cos * -height / 2 + height / 2
    first_x, first_y = _fixed(x0 + cos * 0.5 + sin * 0.5), _fixed(y0 - sin * 0.5 + cos * 0.5)
    y = torch.arange(height, device=pictures.device)[:, None]
    x = torch.arange(width, device=pictures.device)[None, :]
    columns = (first_x + _fixed(cos) * x + _fixed(sin) * y) >> 16
    rows = (first_y + _fixed(-sin) * x + _fixed(cos) * y) >> 16
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    number = pictures.shape[0]
    return gather(pictures, Places(*(t.expand(number, height, width) for t in (rows, columns, inside))), fill)


def _fixed(value: float) -> int:
    return math.floor(value * FIXED + 0.5)


def sheared_down(pictures: Tensor, slope: Tensor, fill: float = 0) -> Tensor:
    """Return images whose pixel (x, y) is that of (x, y + slope * x), cubic between rows; not rounded, not clamped.

    With rows v1..v4 around the position and d its distance from v2 (towards v3), Pillow's cubic is

        v2 + d ((v3 - v1) + d ((2 (v1 - v2) + v3 - v4) + d (v2 - v1 + v4 - v3))).

    Positions are at column centres, so columns are not mixed. Rows beyond the edge repeat it.
    """
    rows, columns = _axes(pictures)
    place = rows + _each(slope) * columns
    inside = (place >= 0) & (place < pictures.shape[-2])
    first = (place - 0.5).floor()
    d = (place - 0.5 - first).unsqueeze(-3).to(pictures.dtype)
    across = columns.floor().long().expand(inside.shape)
    everywhere = torch.ones_like(inside)
    v1, v2, v3, v4 = (gather(pictures, Places(first.long() + step, across, everywhere), fill) for step in (-1, 0, 1, 2))
    sheared = v2 + d * ((v3 - v1) + d * ((2 * (v1 - v2) + v3 - v4) + d * (v2 - v1 + v4 - v3)))
    return torch.where(inside.unsqueeze(-3), sheared, torch.as_tensor(fill, dtype=pictures.dtype).to(sheared.device))
