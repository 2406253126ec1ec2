"""A user's own image, turned upright, cropped and resized to the input of a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.data.files import one_line

if TYPE_CHECKING:
    from PIL import Image

SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")


def read_image(path: Path | str, shape: tuple[int, int, int]) -> Tensor:
    """Return an image of any format Pillow reads as a float tensor of shape (C, H, W) in [0, 1]; C is 1 or 3."""
    return torch.from_numpy(read_picture(Path(path), shape).astype(np.float32) / np.float32(255))


def read_picture(path: Path, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Return the first frame of an image as uint8 (C, H, W): upright, cropped to the centre, resized; transparent pixels become white."""
    check_shape(shape)
    if not path.is_file():
        raise InputError(f"{path}: {'a picture is needed, this is a directory' if path.is_dir() else 'no such file'}")
    from PIL import Image, ImageOps

    channels, height, width = shape
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            plain = _plain(path, upright).convert("L" if channels == 1 else "RGB")
        fitted = ImageOps.fit(plain, (width, height), Image.Resampling.BICUBIC)  # a copy if it fits
    except InputError:
        raise
    except Exception as error:  # Pillow's many decoders raise many types on a broken file
        raise InputError(f"{path}: is not a picture that Pillow can read: {one_line(error)}") from error
    pixels = np.array(fitted, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def check_shape(shape: tuple[int, int, int]) -> None:
    """Raise unless `shape` is (1 or 3, height, width)."""
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise InputError(f"shape of a picture must be (1 or 3, height, width), got {tuple(shape)}")


def _plain(path: Path, image: Image.Image) -> Image.Image:
    """Return an image with 8 bits a channel and no transparency."""
    from PIL import Image

    if image.mode in SIXTEEN_BIT:
        return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise InputError(f"{path}: 32-bit pixels have no known range; save the picture with 8 bits a channel")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image
