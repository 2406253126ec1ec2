"""Shifts and affine maps of images, differentiable in the image and in the map; what comes from outside is 0."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shift(pictures: Tensor, offset: Tensor) -> Tensor:
    """Return images moved by `offset` (N x 2: right, down; 1 = half the side)."""
    grid = torch.stack(_places(pictures), dim=-1) - offset[:, None, None, :]
    return F.grid_sample(pictures, grid, align_corners=False)


def bend(pictures: Tensor, matrix: Tensor) -> Tensor:
    """Return images after an affine map A (N x 2 x 3): pixel (x, y), in [-1, 1], is read at `A (x, y, 1)`."""
    columns, rows = _places(pictures)
    places = torch.stack([columns, rows, torch.ones_like(rows)], dim=-1)
    grid = torch.einsum("hwk,nik->nhwi", places, matrix)
    return F.grid_sample(pictures, grid, align_corners=False)


def _places(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return the column and the row of every pixel's centre, H x W each, in [-1, 1]."""
    height, width = pictures.shape[-2:]
    across = (2 * torch.arange(width, dtype=pictures.dtype, device=pictures.device) + 1) / width - 1
    down = (2 * torch.arange(height, dtype=pictures.dtype, device=pictures.device) + 1) / height - 1
    rows, columns = torch.meshgrid(down, across, indexing="ij")
    return columns, rows
