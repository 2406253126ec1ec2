"""Images as PNG: a tensor as bytes, many images as one sprite, an update as one coloured field per layer.

A sprite is one column, so that PNG compresses repetitions between successive images. The first and last row of every image
are doubled, so that a browser that scales by a fraction never shows a neighbour.

A layer is drawn as output units by everything else, longer side across. A point shows the largest magnitude under it:

    sign(g) sqrt(min(1, |g| / q)),   q = the 99th percentile of the layer's |g|,

so that a few huge values do not wash out the rest. Negative is blue, positive orange, zero transparent.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

FIELD = (48, 320)
STEPS = 32
BELOW, ABOVE = (46, 118, 206), (222, 105, 32)

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]


def pixels(picture: Tensor) -> Pixels:
    """Return an image as H x W x C bytes: clamped to [0, 1], NaN black, a row of F values as 1 x F."""
    values = picture.detach().cpu().float().numpy()
    values = np.clip(np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0), 0, 1)
    if values.ndim == 1:
        values = values[None, None, :]
    elif values.ndim == 2:
        values = values[None]
    return np.asarray(np.round(values.transpose(1, 2, 0) * 255), dtype=np.uint8)


def drawable(picture: Tensor, *, stack: bool = False) -> Tensor:
    """Return an image (with `stack`, a stack of them) in a drawable shape: channels other than 1 or 3 one below the other."""
    lead, shape = (picture.shape[:1], picture.shape[1:]) if stack else (picture.shape[:0], picture.shape)
    if len(shape) == 0:
        return picture.reshape(*lead, 1)
    if len(shape) <= 2 or (len(shape) == 3 and shape[0] in (1, 3)):
        return picture
    return picture.reshape(*lead, -1, shape[-1])


def shrink(image: Pixels, side: int) -> Pixels:
    """Return the image with sides of at most `side`, by block means; smaller images and rows unchanged."""
    rows, columns = image.shape[:2]
    largest = max(rows, columns)
    if largest <= side or rows == 1:
        return image
    from PIL import Image

    size = max(1, round(columns * side / largest)), max(1, round(rows * side / largest))
    plain = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).resize(size, Image.Resampling.BOX)
    return np.asarray(plain, dtype=np.uint8).reshape(size[1], size[0], image.shape[2])


def coarsen(image: Pixels, strength: float) -> Pixels:
    """Return the image quantised to steps of `strength` times its roughness, black and white kept; strength 0 changes nothing.

    Roughness is the median difference of horizontal neighbours: incompressible noise gets few values, smooth images keep all.

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
    """Return one PNG with the images stacked vertically; image i starts at row i * (H + 2) + 1."""
    column = np.concatenate([np.pad(image, ((1, 1), (0, 0), (0, 0)), mode="edge") for image in images])
    return png(column)


def png(image: Pixels) -> bytes:
    """Return an H x W x C image, C 1 or 3, as PNG."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(out, "PNG")
    return out.getvalue()


def data_uri(data: bytes) -> str:
    """Return PNG bytes as a data URI."""
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


@dataclass(frozen=True, slots=True)
class Layer:
    """One drawn layer of an update: name, shape and size in words, largest |g|, and the PNG."""

    name: str
    size: str
    largest: float
    height: int
    png: bytes


def draw_layers(update: Mapping[str, Tensor]) -> list[Layer]:
    """Return every layer of the update, drawn, in order."""
    return [_draw(name, value) for name, value in update.items() if value.numel()]


def _draw(name: str, value: Tensor) -> Layer:
    values = np.nan_to_num(value.detach().cpu().double().numpy(), nan=0.0, posinf=np.inf, neginf=-np.inf)
    field = _largest_under(_lay_out(values), FIELD)
    sizes = " × ".join(f"{n:,}" for n in value.shape) or "1"
    total = f" = {value.numel():,}" if value.ndim > 1 else ""
    unit = "value" if value.numel() == 1 else "values"
    rows = field.shape[0]
    height = max(14, min(96, rows * (6 if rows <= 16 else 2)))
    return Layer(name, f"{sizes}{total} {unit}", float(np.abs(values).max()), height, _colour(field))


def _lay_out(values: Values) -> Values:
    matrix = values.reshape(values.shape[0] if values.ndim > 1 else 1, -1)
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _largest_under(matrix: Values, limit: tuple[int, int]) -> Values:
    """Return the matrix shrunk below `limit` by keeping, in each block, the value of largest magnitude."""
    high, wide = (math.ceil(n / most) for n, most in zip(matrix.shape, limit, strict=True))
    rows, columns = math.ceil(matrix.shape[0] / high), math.ceil(matrix.shape[1] / wide)
    padding = ((0, rows * high - matrix.shape[0]), (0, columns * wide - matrix.shape[1]))
    tiled = np.pad(matrix, padding).reshape(rows, high, columns, wide).transpose(0, 2, 1, 3)
    blocks = tiled.reshape(rows, columns, high * wide)
    chosen = np.abs(blocks).argmax(axis=2)
    return np.asarray(np.take_along_axis(blocks, chosen[..., None], axis=2)[..., 0])


def _colour(field: Values) -> bytes:
    """Return the field as a PNG with a palette of 2 STEPS + 1 colours, the middle one transparent."""
    from PIL import Image

    size = np.abs(field)
    finite = size[np.isfinite(size)]
    bound = float(np.percentile(finite, 99)) if finite.size else 0.0
    bound = bound or float(finite.max(initial=0.0)) or 1.0
    strength = np.sign(field) * np.sqrt(np.minimum(1.0, size / bound))
    image = Image.fromarray((np.round(strength * STEPS) + STEPS).astype(np.uint8))
    colours = [BELOW if step < STEPS else ABOVE for step in range(2 * STEPS + 1)]
    image.putpalette([channel for colour in colours for channel in colour])
    alpha = bytes(round(255 * abs(step - STEPS) / STEPS) for step in range(2 * STEPS + 1))
    out = io.BytesIO()
    image.save(out, "PNG", transparency=alpha)
    return out.getvalue()
