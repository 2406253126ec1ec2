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


def pixels(picture: Tensor) -> Pixels:
    """Return a picture as H x W x C bytes: clamped to [0, 1], NaN black, a row of F values as 1 x F."""
    values = picture.detach().cpu().float().numpy()
    values = np.clip(np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0), 0, 1)
    if values.ndim == 1:
        values = values[None, None, :]
    elif values.ndim == 2:
        values = values[None]
    return np.asarray(np.round(values.transpose(1, 2, 0) * 255), dtype=np.uint8)


def drawable(picture: Tensor, *, stack: bool = False) -> Tensor:
    """Return a picture as one that can be drawn: channels other than 1 or 3 one below the other, further ones likewise.

    With `stack`, each item of the first dimension. A single number becomes a row of one.
    """
    lead, shape = (picture.shape[:1], picture.shape[1:]) if stack else (picture.shape[:0], picture.shape)
    if len(shape) == 0:
        return picture.reshape(*lead, 1)
    if len(shape) <= 2 or (len(shape) == 3 and shape[0] in (1, 3)):
        return picture
    return picture.reshape(*lead, -1, shape[-1])


def shrink(image: Pixels, side: int) -> Pixels:
    """Return the image with sides of at most `side`, by the mean over blocks; a smaller one, or a row, as it is."""
    rows, columns = image.shape[:2]
    largest = max(rows, columns)
    if largest <= side or rows == 1:
        return image
    from PIL import Image

    size = max(1, round(columns * side / largest)), max(1, round(rows * side / largest))
    plain = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).resize(size, Image.Resampling.BOX)
    return np.asarray(plain, dtype=np.uint8).reshape(size[1], size[0], image.shape[2])


def coarsen(image: Pixels, strength: float) -> Pixels:
    """Return the image with steps of brightness `strength` times as large as its roughness, black and white kept.

    Roughness is the median difference of neighbours across, so that noise, which does not compress, gets few values
    (and hides that it has few) while a picture with calm surfaces keeps them all. Strength 0 changes nothing.

    >>> noise = np.array([[[0], [200], [90], [255]]], dtype=np.uint8)
    >>> coarsen(noise, 1.0).tolist(), coarsen(noise, 0.0) is noise
    ([[[0], [255], [128], [255]]], True)
    """
    across = np.abs(np.diff(image.astype(np.int16), axis=1))
    step = strength * float(np.median(across)) if across.size else 0.0
    if step <= 1:
        return image
    steps = max(2, round(255 / step))
    return np.asarray(np.round(np.round(image / 255 * steps) * (255 / steps)), dtype=np.uint8)


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
