"""Pictures as PNG: a tensor as bytes, and many pictures of one size as one sprite (a strip, one below the other).

A sprite is one column, so that a picture lies close to its predecessor and PNG's compression sees what repeats.
Every picture has its first and last row doubled: a browser that scales by a fraction then never shows a neighbour.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]

EXACT = 256


def pixels(picture: Tensor) -> Pixels:
    """Return a picture as H x W x C bytes: clamped to [0, 1], NaN black, a row of F values as 1 x F."""
    values = picture.detach().cpu().float().numpy()
    values = np.clip(np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0), 0, 1)
    if values.ndim == 1:
        values = values[None, None, :]
    elif values.ndim == 2:
        values = values[None]
    return np.asarray(np.round(values.transpose(1, 2, 0) * 255), dtype=np.uint8)


def coarsen(image: Pixels, levels: int) -> Pixels:
    """Return the image with `levels` values a channel, black and white among them; noise then compresses better.

    >>> coarsen(np.array([0, 100, 255], dtype=np.uint8), 2).tolist()
    [0, 0, 255]
    """
    if levels >= EXACT:
        return image
    return np.asarray(np.round(np.round(image / 255 * (levels - 1)) * (255 / (levels - 1))), dtype=np.uint8)


def sprite(images: Sequence[Pixels]) -> bytes:
    """Return one PNG with the images below each other; image i starts at row i * (H + 2) + 1."""
    column = np.concatenate([np.pad(image, ((1, 1), (0, 0), (0, 0)), mode="edge") for image in images])
    return png(column)


def png(image: Pixels) -> bytes:
    """Return an H x W x C image, C 1 or 3, as PNG."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(out, "PNG")
    return out.getvalue()


def data_uri(data: bytes) -> str:
    """Return PNG bytes as an address that holds them."""
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
